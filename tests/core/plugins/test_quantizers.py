"""Quantisers of plugins: picked up by name, shown each value, and their graphs checked before they are used."""

import io

import numpy as np
import pytest

import mge
import mge.functional as F
import mge.module as M
from mge.errors import (
    ArgumentError,
    PluginContractError,
    PluginNotInstalled,
    UnsupportedError,
)
from mge.jit import trace

# int8 per tensor for the inputs of linear layers: the scale of an activation from data, that of a weight in the graph.
TOY = """
    import numpy as np
    import mge.functional as F
    from mge.errors import ArgumentError
    from mge.plugin import Quantizer, rewrite

    class Largest:
        def __init__(self, levels):
            self.top, self.levels = 0.0, levels

        def update(self, x):
            self.top = max(self.top, float(np.abs(x).max()))

        def finalize(self):
            return max(self.top, 1e-8) / self.levels

    def rounded(x, scale, levels):
        return F.clip(F.round(x / scale), -levels, levels).astype("int8")

    class Toy(Quantizer):
        name = "toy8"
        seen = []

        def annotate(self, graph, config, capabilities):
            self.seen.append((graph, config, capabilities))
            levels = config.get("levels", 127)
            if not 0 < levels < 128:
                raise ArgumentError(f"toy8: levels is {levels}; it must be between 1 and 127")
            return {n.inputs[0]: levels for n in graph.nodes if n.op.name == "linear"}

        def observer(self, spec):
            return Largest(spec)

        def convert(self, graph, plan, parameters):
            def visit(node, inputs):
                if node.op.name != "linear":
                    return None
                x, weight, bias = inputs
                levels, scale = plan[node.inputs[0]], parameters[node.inputs[0]]
                of_weight = F.abs(weight).max() / levels
                sums = F.matmul(
                    rounded(x, scale, levels), rounded(weight, of_weight, levels), transpose_b=True
                )
                return sums.astype("float32") * (of_weight * scale) + bias

            return rewrite(graph, visit)
"""


class Net(M.Module):
    """Two linear layers; batch norm between them changes state in training."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = M.Linear(8, 16), M.BatchNorm1d(16), M.Linear(16, 4)

    def forward(self, x):
        return F.softmax(self.last(F.relu(self.norm(self.first(x)))), axis=-1)


@pytest.fixture
def add(here):
    """Install the toy, or another source; then (plugins are looked for once) return a model."""

    def add(source=TOY):
        entries = {"mge.quantizers": {"toy8": "acme_quant:Toy"}}
        here.add("acme-quant", entries, {"acme_quant": source})
        mge.random.seed(5)
        model = Net()
        model.eval()
        return model

    return add


@pytest.fixture
def data():
    rng = np.random.default_rng(2)
    return [rng.normal(size=(6, 8)).astype("float32") for _ in range(4)]


def ops(model):
    """Return the ops of the last plan of a traced function, and of its prologue."""
    (compiled,) = model.last.plans.values()
    return [
        [(s.slot.node.op.name, str(s.slot.node.sig.input_types[0].dtype)) for s in plan.steps]
        for plan in (compiled.plan, compiled.prologue.plan)
    ]


def test_a_model_is_quantised_end_to_end(add, data):
    net = add()
    made = mge.quantize(net, "toy8", iter(data))
    for x in data:
        assert np.allclose(made(x).numpy(), net(mge.tensor(x)).numpy(), atol=0.02)
    steps, once = ops(made)
    assert steps.count(("matmul", "int8")) == 2 and "linear" not in dict(steps)
    assert dict(once)["cast"] == "float32", "weights are not converted once, beside the plan"
    import acme_quant

    ((graph, config, capabilities),) = acme_quant.Toy.seen
    assert sum(bool(n.sig.attrs) for n in graph.inputs) >= 4 and config == {} == dict(capabilities)
    assert "test_quantizers.py:" in next(n for n in made.last.graph.nodes).place


def test_batches_of_other_sizes(add, data):
    net = add()
    made = mge.quantize(net, "toy8", [*data, data[0][:3] * 3])
    for x in (data[0], data[1][:2], data[2][:5], data[3][:2]):
        assert np.allclose(made(x).numpy(), net(mge.tensor(x)).numpy(), atol=0.1)
    again = mge.quantize(net, "toy8", [np.concatenate(data), data[0][:3] * 3])
    assert np.array_equal(again(data[1]).numpy(), made(data[1]).numpy()), (
        "not all batches were seen"
    )
    file = io.BytesIO()
    assert made.dump(file, dynamic_batch=True).dynamic_batch
    file.seek(0)
    loaded = mge.load_model(file)
    for x in (data[0][:1], data[1][:4]):
        assert np.array_equal(loaded(x).numpy(), made(x).numpy())


def test_it_is_dumped_and_loaded(add, data):
    net = add()
    made = mge.quantize(net, "toy8", data)
    file = io.BytesIO()
    made.dump(file)
    file.seek(0)
    loaded = mge.load_model(file)
    assert np.array_equal(loaded(data[0]).numpy(), made(data[0]).numpy())
    again = mge.quantize(loaded, "toy8", data)  # it has no linear layers any more
    assert np.array_equal(again(data[1]).numpy(), made(data[1]).numpy())


def test_it_uses_the_weights_as_they_are(add, data):
    net = add()
    made = mge.quantize(net, "toy8", data)
    before = made(data[0]).numpy()
    net.last.weight[:] = 0
    net.last.bias[:] = 0
    assert (made(data[0]).numpy() == 0.25).all() and not (before == 0.25).all()


def test_functions_trees_and_several_arguments(add, data):
    add()
    weight = mge.Parameter(np.eye(8, dtype="float32"))
    zero = mge.tensor(np.zeros(8, "float32"))

    @trace
    def function(x, y):
        return {"sum": (F.linear(x, weight, zero) + y, y)}

    made = mge.quantize(function, "toy8", [(x, mge.tensor(x)) for x in data], levels=100)
    result = made(data[0], data[1])["sum"]
    assert np.allclose(result[0].numpy(), data[0] + data[1], atol=0.05)
    assert np.array_equal(result[1].numpy(), data[1])
    with mge.eager():
        eager = made(data[0], data[1])["sum"]
    assert np.array_equal(eager[0].numpy(), result[0].numpy())


# What the user may get wrong.


def test_what_is_refused(add, data):
    net = add()
    with pytest.raises(PluginNotInstalled, match='quantiser "nothing" was asked for'):
        mge.quantize(net, "nothing", data)
    with pytest.raises(ArgumentError, match="there is no batch"):
        mge.quantize(net, "toy8", [])
    with pytest.raises(ArgumentError, match="toy8: levels is 500; it must be between"):
        mge.quantize(net, "toy8", data, levels=500)
    net.train()
    with pytest.raises(ArgumentError, match=r"changes . values while it runs") as caught:
        mge.quantize(net, "toy8", data)
    assert "try: model.eval()" in str(caught.value) and "test_quantizers.py" in str(caught.value)


def test_a_model_that_calls_other_ops_for_other_shapes(add, data):
    add()
    made = mge.quantize(lambda x: x * 2 if x.shape[0] == 6 else x + x + 1, "toy8", data)
    with pytest.raises(
        ArgumentError, match=r"for inputs \(f32\[2, 8\]\) the model calls other ops"
    ):
        made(data[0][:2])


# Faults of a quantiser.

FAULTS = {
    "annotate": (
        "return {n.inputs[0]",
        "raise KeyError(7); return {n.inputs[0]",
        "failed in annotate: KeyError: 7",
    ),
    "plan": (
        "return {n.inputs[0]: levels for",
        "return [0] or {n.inputs[0]: levels for",
        "annotate gave a list; it must give a mapping",
    ),
    "foreign": (
        "return {n.inputs[0]: levels for",
        "import mge; return {mge.tensor(1)._node: levels for",
        "annotate gave <node .*, which is no value of the graph",
    ),
    "observer": ("return Largest(spec)", "return 1 / 0", "failed in observer: ZeroDivisionError"),
    "update": ("self.top = max(", "self.tip = mix(", "failed in update: NameError: name 'mix'"),
    "finalize": (
        "return max(self.top, 1e-8)",
        "return 1 / 0",
        "failed in finalize: ZeroDivisionError",
    ),
    "convert": (
        "def visit(node, inputs):",
        "raise OSError('gone')\n            def visit():",
        "convert: OSError: gone",
    ),
    "rule": ("transpose_b=True", "transpose_b=False", "failed in convert: ShapeError: matmul"),
    "no graph": (
        "return rewrite(graph, visit)",
        "return visit",
        "convert gave a function, and not a Graph",
    ),
    "types": (
        "return rewrite(graph, visit)",
        "return rewrite(graph, lambda n, x: x[0].astype('float16') if n is graph.outputs[0] else None)",
        'convert gave a wrong graph: pass "convert" changed the types of the outputs',
    ),
    "inputs": (
        "return rewrite(graph, visit)",
        "from mge.plugin import Graph; return Graph(graph.inputs[1:], graph.nodes, graph.outputs)",
        'convert gave a wrong graph: pass "convert" changed the inputs',
    ),
    "order": (
        "return rewrite(graph, visit)",
        "from mge.plugin import Graph; return Graph(graph.inputs, graph.nodes[::-1], graph.outputs)",
        "convert gave a wrong graph: .* before one of its inputs",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_an_error_that_names_the_quantiser(add, data, fault):
    old, new, text = FAULTS[fault]
    assert TOY.count(old) >= 1
    net = add(TOY.replace(old, new))
    with pytest.raises(PluginContractError, match=f'quantiser "toy8".*{text}'):
        mge.quantize(net, "toy8", data)
    assert net(mge.tensor(data[0])).shape == (6, 4)


@pytest.mark.parametrize("given", ["None", "'no int8'", "[3]", "7"])
def test_a_validate_that_gives_no_reasons_is_named(add, data, given):
    net = add(
        TOY + f"\n        def validate(self, graph, backend, dev):\n            return {given}\n"
    )
    with pytest.raises(PluginContractError, match=r'quantiser "toy8": validate gave .* list'):
        mge.quantize(net, "toy8", data)


@pytest.mark.parametrize("data", [None, 3])
def test_data_must_give_batches(add, data):
    with pytest.raises(ArgumentError, match=f"quantize: data is {data}; it must give batches"):
        mge.quantize(add(), "toy8", data)


def test_what_the_device_refuses_is_told(add, data):
    refuse = """
        def validate(self, graph, backend, dev):
            return [f"{backend.name}:{dev} has no int8", "and no int4"]
    """
    net = add(TOY + refuse)
    with pytest.raises(
        UnsupportedError, match='refuses the graph of quantiser "toy8": ref:0 has no int8'
    ) as caught:
        mge.quantize(net, "toy8", data)
    assert "\n  and no int4" in str(caught.value)
