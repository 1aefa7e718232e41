"""What follows from each op record: completeness, docs, text and files, and errors for impossible calls."""

import doctest

import numpy as np
import pytest

import mge
from mge.errors import InternalError, MgeError
from mge.graph import LOCAL, Graph, Recording
from mge.jit import trace
from mge.op import OPS
from mge.parse import parse_graph
from mge.testing.impossible import odd_calls
from mge.text import print_graph
from tests.core.ops.cases import (
    CASES,
    NAMES,
    Variant,
    all_samples,
    as_tuple,
    call,
    plain_reference,
    read,
    same_bits,
    sample,
    tensors,
    variants,
)

each_op = pytest.mark.parametrize("name", NAMES)
each_case = pytest.mark.parametrize(("name", "index"), CASES)


@each_op
def test_samples_exist(name, rng):
    """Each op has samples, and every rule that it needs."""
    op = OPS[name]
    assert all_samples(op, rng), f"{name} has no samples, so nothing tests it"
    assert op._reference is not None, f"{name} has no reference"
    if op.is_base:
        assert op._lowering is None, f"{name} is a base op, and has a lowering"
    else:
        assert op._lowering is not None, f"{name} is no base op, and has no lowering"
    assert op._gradient or op._lowering, f"{name} has no gradient and no lowering"


def example_names():
    space = {"mge": mge, "np": np, "tensor": mge.tensor} | OPS
    functional = getattr(mge, "functional", None)
    if functional is not None:
        space |= {n: getattr(functional, n) for n in functional.__all__} | {"F": functional}
    return space


@each_op
def test_docs(name):
    """The docstring has its sections, describes each parameter, and its examples run."""
    from tests.core.architecture.test_docstrings import faults  # imports every public module

    op = OPS[name]
    problems = faults(op)
    assert not problems, f"{name}: " + "; ".join(problems)
    test = doctest.DocTestParser().get_doctest(op.__doc__, example_names(), name, None, 0)
    assert test.examples, f"{name} has no example"
    output = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    doctest.DocTestRunner(optionflags=flags).run(test, out=output.append)
    assert not output, "".join(output)


def graph_of(variant):
    """Return the graph of one call."""
    LOCAL.recording = Recording()
    inputs = tensors(variant)
    results = call(variant, inputs)
    recording = LOCAL.recording
    for t in inputs:  # also those that the op does not read
        recording.enlist(t._node)
    return recording.graph([r._node for r in results], [t._node for t in inputs])


@each_case
def test_print_and_parse(name, index, rng):
    """The text of a graph parses to an equal graph, which prints to the same text."""
    for variant in variants(name, index, rng):
        if any(map(callable, variant.attrs.values())):
            return  # Python functions have no text
        graph = graph_of(variant)
        text = print_graph(graph)
        again = parse_graph(text)
        assert isinstance(again, Graph)
        assert print_graph(again) == text
        assert again == graph, text


@each_case
def test_dump_and_load(name, index, rng, tmp_path):
    """A dumped function gives the same bits after it is loaded."""
    found = {v.label: v for v in variants(name, index, rng)}
    variant = found.get("float32") or next(iter(found.values()))
    inputs = tensors(variant)
    if not inputs or any(map(callable, variant.attrs.values())):
        return

    @trace(capture_as_const=True)
    def function(*given):
        return call(variant, given)

    wanted = read(function(*inputs))
    function.dump(str(tmp_path / "op.mge"))
    loaded = mge.load_model(str(tmp_path / "op.mge"))
    for one, other in zip(read(as_tuple(loaded(*inputs))), wanted, strict=True):
        problem = same_bits(one, other)
        assert not problem, problem


MOST_BYTES = 1 << 16


def try_call(op, arrays, attrs):
    """Call an op; compute what its rule admits, and say what is wrong with that."""
    inputs = [mge.tensor(a, dtype=a.dtype) if isinstance(a, np.ndarray) else a for a in arrays]
    results = as_tuple(op(*inputs, **attrs))
    if not results or sum(r._node.type.nbytes for r in results) > MOST_BYTES:
        return None
    sig = results[0]._node.sig if len(results) == 1 else results[0]._node.inputs[0].sig
    variant = Variant(op, "odd", tuple(a for a in arrays if a is not None), attrs, sig)
    for value, said in zip(plain_reference(variant), sig.types, strict=True):
        if np.shape(value) != said.shape:
            return f"the rule says {said}, the reference gives shape {np.shape(value)}"
    return None


@each_case
def test_impossible_calls(name, index, rng):
    """A call that makes no sense raises one of mge's errors; one that the rule admits can be computed."""
    if name == "host_call":
        pytest.skip("the errors are those of the user's function")
    op = OPS[name]
    arrays, attrs = sample(op, index, rng)
    problems = []
    for changed, changed_attrs in odd_calls(arrays, attrs, op):
        problem = None
        try:
            problem = try_call(op, changed, changed_attrs)
        except InternalError as error:
            problem = f"raises InternalError: {error}"
        except MgeError as error:
            if len(str(error).splitlines()[0]) < 10:
                problem = f"raises {type(error).__name__} with the text {str(error)!r}"
        except Exception as error:
            problem = f"raises {type(error).__name__}: {error}"
        if problem:
            shown = [f"{a.dtype}{a.shape}" if isinstance(a, np.ndarray) else a for a in changed]
            problems.append(f"{name}(*{shown}, **{changed_attrs}) {problem}")
        LOCAL.recording = Recording()
    if problems:
        raise AssertionError("\n".join([*problems[:5], f"{len(problems)} in all"]))
