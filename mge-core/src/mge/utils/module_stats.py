"""Count a module's parameters, multiply-adds and activations.

In: a module, and inputs or their shapes. Out: totals, and a row for each parameter and each module.
After ``module``; an interface file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..cost import multiply_adds
from ..errors import ArgumentError, user_place
from ..execute import NODE_WATCHERS
from ..graph import Node, Signature
from ..mode import eager
from ..module import Module
from ..run import eval as evaluate
from ..tensor import Tensor, tensor
from ..tree import flatten

__all__ = [
    "ActivationStats",
    "FlopsStats",
    "ModuleStats",
    "ParamStats",
    "TotalStats",
    "module_stats",
]


class ParamStats(NamedTuple):
    """One parameter of a module.

    Attributes
    ----------
    name : str
    shape : tuple of int
    dtype : str
    size : int, elements
    nbytes : int, bytes
    mean, std : float
        Mean and standard deviation of its values.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    size: int
    nbytes: int
    mean: float
    std: float


class FlopsStats(NamedTuple):
    """The multiply-adds of one module, without those of modules in it.

    Attributes
    ----------
    name, class_name : str
    input_shapes, output_shapes : tuple of shapes
        Of the last call.
    flops : int, multiply-adds
    ratio : float, 0 to 1
        Its part of all.
    """

    name: str
    class_name: str
    input_shapes: tuple[tuple[int, ...], ...]
    output_shapes: tuple[tuple[int, ...], ...]
    flops: int
    ratio: float


class ActivationStats(NamedTuple):
    """The outputs of one module that has no modules in it.

    Attributes
    ----------
    name, class_name : str
    shapes : tuple of shapes
        Of the last call.
    dtype : str
    size : int, elements
        Of all calls.
    nbytes : int, bytes
    """

    name: str
    class_name: str
    shapes: tuple[tuple[int, ...], ...]
    dtype: str
    size: int
    nbytes: int


class TotalStats(NamedTuple):
    """Sums over a module.

    Attributes
    ----------
    param_dims, act_dims : int, elements
        Of parameters and of activations.
    param_size, act_size : int, bytes
    flops : int, multiply-adds
    """

    param_dims: int
    param_size: int
    flops: int
    act_dims: int
    act_size: int


class ModuleStats(NamedTuple):
    """The rows behind the sums; a list is empty where it was not asked for.

    Attributes
    ----------
    params : list of ParamStats
    flops : list of FlopsStats
    activations : list of ActivationStats
    """

    params: list[ParamStats]
    flops: list[FlopsStats]
    activations: list[ActivationStats]


class _Watch:
    """Hooks on all modules, and the module that runs now."""

    def __init__(self, model: Module) -> None:
        self.names = {id(module): name for name, module in model.named_modules()}
        self.running: list[int] = []
        self.flops: dict[int, int] = {}
        self.calls: dict[int, tuple[Module, list[Any], list[Any], int, int]] = {}
        self._handlers = []
        for module in model.modules():
            self._handlers.append(module.register_forward_pre_hook(self._enter))
            self._handlers.append(module.register_forward_hook(self._leave))

    def _enter(self, module: Module, inputs: Any) -> None:
        self.running.append(id(module))

    def _leave(self, module: Module, inputs: Any, outputs: Any) -> None:
        self.running.pop()
        given = [t for t in flatten(inputs)[0] if isinstance(t, Tensor)]
        made = [t for t in flatten(outputs)[0] if isinstance(t, Tensor)]
        before = self.calls.get(id(module))
        size = sum(t.size for t in made) + (before[3] if before else 0)
        nbytes = sum(t._node.type.nbytes for t in made) + (before[4] if before else 0)
        self.calls[id(module)] = (module, [t.shape for t in given], made, size, nbytes)

    def see(self, sig: Signature, node: Node, start: int, end: int) -> None:
        """Count a node that ran."""
        if self.running:
            self.flops[self.running[-1]] = self.flops.get(self.running[-1], 0) + multiply_adds(sig)

    def remove(self) -> None:
        """Take the hooks away."""
        for handler in self._handlers:
            handler.remove()


def module_stats(
    model: Module,
    inputs: Any = None,
    input_shapes: Sequence[Any] | None = None,
    cal_params: bool = True,
    cal_flops: bool = True,
    cal_activations: bool = True,
    logging_to_stdout: bool = True,
    bar_length_max: int = 20,
) -> tuple[TotalStats, ModuleStats]:
    """Count parameters, multiply-adds and activations of a module.

    Parameters
    ----------
    model : Module
        It runs once, in evaluation mode, if ``cal_flops`` or ``cal_activations``.
    inputs : tensor, array, or tuple, list or dict of these, optional
        What the module is called with; a dict gives arguments by name.
    input_shapes : shape, or sequence of shapes, optional
        Instead of ``inputs``: float32 zeros of these shapes.
    cal_params, cal_flops, cal_activations : bool, default True
        What to count.
    logging_to_stdout : bool, default True
        Print tables.
    bar_length_max : int, default 20
        Characters of the longest bar in the tables.

    Returns
    -------
    (TotalStats, ModuleStats)
        Sums, and a row for each parameter and module.

    Raises
    ------
    ArgumentError
        Neither ``inputs`` nor ``input_shapes`` is given though the module has to run, or both are.

    Notes
    -----
    A multiply-add counts as 1, as in MegEngine; double it to compare with figures that count both. Counted are
    convolutions, matrix products, linear layers and attention; additions of a bias, norms, poolings and what works
    element by element are not. A module that is called twice counts twice.

    Examples
    --------
    >>> from mge.utils.module_stats import module_stats
    >>> total, details = module_stats(M.Linear(4, 3), input_shapes=[(2, 4)], logging_to_stdout=False)
    >>> total.param_dims, total.flops, total.act_dims
    (15, 24, 6)
    """
    runs = cal_flops or cal_activations
    if (inputs is None) == (input_shapes is None) and (runs or inputs is not None):
        raise ArgumentError(
            f"module_stats: {'neither inputs nor' if inputs is None else 'both inputs and'} input_shapes given; "
            "the module runs once, with one of them"
        ).add_place(user_place())
    params = [_param(name, p) for name, p in model.named_parameters()] if cal_params else []
    watch = _run(model, *_arguments(inputs, input_shapes)) if runs else None
    flops = _flops(watch) if watch and cal_flops else []
    activations = _activations(watch) if watch and cal_activations else []
    total = TotalStats(
        sum(p.size for p in params),
        sum(p.nbytes for p in params),
        sum(f.flops for f in flops),
        sum(a.size for a in activations),
        sum(a.nbytes for a in activations),
    )
    details = ModuleStats(params, flops, activations)
    if logging_to_stdout:
        sys.stdout.write(_tables(total, details, bar_length_max))
    return total, details


def _arguments(inputs: Any, shapes: Any) -> tuple[tuple, dict[str, Any]]:
    if shapes is not None:
        one = all(isinstance(n, (int, np.integer)) for n in shapes)
        return tuple(
            tensor(np.zeros(s, np.float32)) for s in ([tuple(shapes)] if one else shapes)
        ), {}
    if isinstance(inputs, dict):
        return (), {name: _as_tensor(value) for name, value in inputs.items()}
    return tuple(map(_as_tensor, inputs)) if isinstance(inputs, (tuple, list)) else (
        _as_tensor(inputs),
    ), {}


def _as_tensor(value: Any) -> Any:
    return tensor(value) if isinstance(value, np.ndarray) else value


def _run(model: Module, args: tuple, options: dict[str, Any]) -> _Watch:
    """Call the module in evaluation mode, node by node, and leave it as it was."""
    modes = [(module, module.training) for module in model.modules()]
    watch = _Watch(model)
    NODE_WATCHERS.append(watch.see)
    try:
        model.eval()
        with eager():
            outputs = model(*args, **options)
        evaluate(*[t for t in flatten(outputs)[0] if isinstance(t, Tensor)])
    finally:
        NODE_WATCHERS.remove(watch.see)
        watch.remove()
        for module, training in modes:
            module.training = training
    return watch


def _param(name: str, p: Tensor) -> ParamStats:
    values = np.asarray(p.numpy()).astype(np.float64)
    mean, std = (float(values.mean()), float(values.std())) if values.size else (0.0, 0.0)
    return ParamStats(name, p.shape, str(p.dtype), p.size, p._node.type.nbytes, mean, std)


def _flops(watch: _Watch) -> list[FlopsStats]:
    total = sum(watch.flops.values()) or 1
    rows = []
    for key, name in watch.names.items():
        call = watch.calls.get(key)
        own = watch.flops.get(key, 0)
        if call is not None and (own or not any(call[0].children())):
            module, given, made, _, _ = call
            shapes = tuple(t.shape for t in made)
            rows.append(
                FlopsStats(
                    name or "(model)", type(module).__name__, tuple(given), shapes, own, own / total
                )
            )
    return rows


def _activations(watch: _Watch) -> list[ActivationStats]:
    rows = []
    for key, name in watch.names.items():
        call = watch.calls.get(key)
        if call is not None and not any(call[0].children()):
            module, _, made, size, nbytes = call
            dtype = ", ".join(dict.fromkeys(str(t.dtype) for t in made))
            shapes = tuple(t.shape for t in made)
            rows.append(
                ActivationStats(
                    name or "(model)", type(module).__name__, shapes, dtype, size, nbytes
                )
            )
    return rows


# Tables.


def _tables(total: TotalStats, details: ModuleStats, bar: int) -> str:
    parts = []
    if details.params:
        head: tuple[str, ...] = ("parameter", "shape", "dtype", "elements", "mean", "std")
        rows: list[tuple[str, ...]] = [
            (p.name, str(p.shape), p.dtype, _short(p.size), f"{p.mean:.3g}", f"{p.std:.3g}")
            for p in details.params
        ]
        parts.append(_table(head, rows, [p.size for p in details.params], bar))
    if details.flops:
        head = ("module", "class", "inputs", "outputs", "flops")
        rows = [
            (
                f.name,
                f.class_name,
                _shapes(f.input_shapes),
                _shapes(f.output_shapes),
                _short(f.flops),
            )
            for f in details.flops
        ]
        parts.append(_table(head, rows, [f.flops for f in details.flops], bar))
    if details.activations:
        head = ("module", "class", "activations", "dtype", "elements")
        rows = [
            (a.name, a.class_name, _shapes(a.shapes), a.dtype, _short(a.size))
            for a in details.activations
        ]
        parts.append(_table(head, rows, [a.size for a in details.activations], bar))
    sums = []
    if details.params:
        sums.append(f"{_short(total.param_dims)} parameters ({_short(total.param_size)}B)")
    if details.flops:
        sums.append(f"{_short(total.flops)} flops (a multiply-add is 1)")
    if details.activations:
        sums.append(f"{_short(total.act_dims)} activations ({_short(total.act_size)}B)")
    return "\n".join([*parts, "total: " + ", ".join(sums), ""])


def _table(
    heads: tuple[str, ...], rows: Iterable[tuple[str, ...]], weights: list[int], bar: int
) -> str:
    total, most = sum(weights) or 1, max(weights) or 1
    full = [(*heads, "%", "")]
    for row, weight in zip(rows, weights):
        full.append((*row, f"{100 * weight / total:.1f}", "█" * round(bar * weight / most)))
    widths = [max(len(row[k]) for row in full) for k in range(len(full[0]))]
    right = {
        k for k, head in enumerate(full[0]) if head in ("elements", "mean", "std", "flops", "%")
    }
    lines = []
    for row in full:
        cells = [
            c.rjust(w) if k in right else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _shapes(shapes: Iterable[tuple[int, ...]]) -> str:
    return " ".join(map(str, shapes))


def _short(number: float) -> str:
    """Return a number with a decimal prefix: 1.23 G."""
    for prefix in ("", "K", "M", "G", "T"):
        if number < 1000 or prefix == "T":
            return f"{number:,.0f}" if not prefix else f"{number:.3g} {prefix}"
        number /= 1000
    raise AssertionError
