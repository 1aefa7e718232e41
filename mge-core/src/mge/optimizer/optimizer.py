"""The base of optimizers: parameter groups, state, and a step that never reads a value.

In: parameters with gradients. Out: ``Optimizer``, which records one update for each parameter group.
After ``module``; before every other file of this package.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Self

import numpy as np

from .. import graph
from ..capture import TracedNumber
from ..dtype import wide_of
from ..errors import ArgumentError, DTypeError, ShapeError, user_place
from ..mode import MODE
from ..ops.logic import logical_or
from ..tensor import ModuleBuffer, Tensor, upload

Update = tuple[Tensor, Tensor]  # a handle, and the value that it gets
# What ``GradScaler.unscale`` found of the gradient of a parameter: a bool tensor, by the parameter's id.
FOUND_INF: dict[int, tuple[weakref.ref[Tensor], Tensor]] = {}


class ParamGroup(dict):
    """Parameters that share hyper-parameters: a dict of these and ``params``.

    Setting a hyper-parameter, as ``group["lr"] = 0.1``, changes the value of a tensor that every recorded or
    traced step reads, so nothing is traced or compiled again. The value may be a 0-d Tensor.

    Parameters
    ----------
    values : dict
        ``params`` (a list) and hyper-parameters.
    names : tuple of str
        The hyper-parameters that are tensors of the update.
    """

    _names: tuple[str, ...] = ()

    def __init__(self, values: Mapping[str, Any], names: tuple[str, ...]) -> None:
        super().__init__()
        first = values["params"][0]
        self._names = names
        self._tensors: dict[str, Tensor] = {
            name: Tensor(0.0, dtype=wide_of(first.dtype), device=first.device) for name in names
        }
        self.update(values)

    def tensor(self, name: str) -> Tensor:
        """Return a hyper-parameter as a 0-d tensor."""
        return self._tensors[name]

    def __setitem__(self, name: str, value: Any) -> None:
        if name in self._names:
            handle = self._tensors[name]
            if isinstance(value, TracedNumber):  # an argument of a traced step
                handle._assign(value.tensor().astype(handle.dtype))
                value = handle
            elif isinstance(value, Tensor):
                if value.shape != ():
                    raise ShapeError(
                        f"param group: {name} has shape {value.shape}; it must be a number"
                    ).add_place(user_place())
                handle._assign(value.astype(handle.dtype).to(handle.device))
            else:
                value = _number(name, value)
                if self.get(name) != value or isinstance(self.get(name), Tensor):
                    handle._rebind(upload(np.array(value, handle.dtype.dtype), handle.device))
        else:
            graph.bump_epoch()
        super().__setitem__(name, value)

    def update(self, *values: Any, **more: Any) -> None:
        """Set several entries, as ``dict.update`` does."""
        for name, value in dict(*values, **more).items():
            self[name] = value

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return an entry; set it first where there is none."""
        if name not in self:
            self[name] = default
        return self[name]


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise DTypeError(
            f"param group: {name} is {value!r}; it must be a number or a 0-d tensor"
        ).add_place(user_place()) from None


class Optimizer:
    """The base of optimizers; subclasses say what state there is, and record updates.

    Parameters
    ----------
    params : Parameter, iterable of Parameter, dict or iterable of dict
        What is optimized; a dict is a group, with ``params`` and hyper-parameters of its own.
    defaults : dict
        Hyper-parameters of groups that do not name them.

    Attributes
    ----------
    param_groups : list of ParamGroup
        ``optimizer.param_groups[0]["lr"] = 0.01`` works at any time.

    Raises
    ------
    ArgumentError
        There are no parameters, or one is given twice.
    DTypeError
        Something is no float tensor, or is a module's buffer.

    Notes
    -----
    State and hyper-parameters are tensors made here and in ``add_param_group``. ``step`` records the updates of
    all groups, then rebinds all handles at once: an error on the way changes nothing. Parameters whose ``.grad``
    is None stay as they are.
    """

    _tensor_names: ClassVar[tuple[str, ...]] = ("lr", "weight_decay")  # hyper-parameters as tensors
    _counts_steps: ClassVar[bool] = False
    param_groups: list[ParamGroup]

    def __init__(self, params: Any, defaults: Mapping[str, Any]) -> None:
        self._defaults = dict(defaults)
        self._state: dict[Tensor, dict[str, Tensor]] = {}
        self.param_groups = []
        given = [params] if isinstance(params, (Tensor, Mapping)) else _listed(params, "params")
        if not given:
            raise ArgumentError(f"{type(self).__name__}: there are no parameters").add_place(
                user_place()
            )
        kinds = {isinstance(item, Mapping) for item in given}
        if len(kinds) > 1:
            raise DTypeError(
                f"{type(self).__name__}: params holds tensors and groups; it must hold one kind"
            )
        groups: list[Any] = given if True in kinds else [{"params": given}]
        for group in groups:
            self.add_param_group(group)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        graph.bump_epoch()

    def add_param_group(self, param_group: Mapping[str, Any]) -> None:
        """Optimize more parameters, as when frozen layers are made trainable.

        Parameters
        ----------
        param_group : dict
            ``params``, and hyper-parameters that differ from the defaults.

        Raises
        ------
        ArgumentError
            A parameter is here already, or a hyper-parameter is out of its range.
        DTypeError
            Something is no float tensor, or is a module's buffer.
        """
        kind = type(self).__name__
        params = param_group.get("params")
        chosen = [params] if isinstance(params, Tensor) else _listed(params, "a group's params")
        for p in chosen:
            if not isinstance(p, Tensor) or isinstance(p, ModuleBuffer) or not p.dtype.is_float:
                what = (
                    f"{type(p).__name__} of {p.dtype}"
                    if isinstance(p, Tensor)
                    else type(p).__name__
                )
                raise DTypeError(
                    f"{kind}: one of the parameters is a {what}; each must be a Parameter or float tensor",
                    hint="module.parameters()",
                ).add_place(user_place())
        known = {id(p) for group in self.param_groups for p in group["params"]}
        if (
            not chosen
            or len({id(p) for p in chosen}) < len(chosen)
            or any(id(p) in known for p in chosen)
        ):
            raise ArgumentError(
                f"{kind}: a group has {len(chosen)} parameters; there must be some, and each may be named once"
            ).add_place(user_place())
        values = {**self._defaults, **param_group, "params": chosen}
        self._check(values)
        if MODE.get().recording is None:
            # Initial values are computed here, so that the first step looks like all others.
            graph.evaluate([p._node for p in chosen])
        group = ParamGroup(values, self._tensor_names)
        states = {p: self._create_state(p, group) for p in chosen}
        if self._counts_steps:
            zero = np.array(0, np.int32)
            counters = {d: Tensor.from_node(upload(zero, d)) for d in {p.device for p in chosen}}
            for p, state in states.items():
                state["step"] = counters[p.device]
        self._state.update(states)
        self.param_groups.append(group)
        graph.bump_epoch()

    def _check(self, values: Mapping[str, Any]) -> None:
        """Raise an error where a hyper-parameter is out of its range."""
        for name, value in values.items():
            if (
                name in self._tensor_names
                and not isinstance(value, Tensor)
                and not _number(name, value) >= 0
            ):
                raise ArgumentError(
                    f"{type(self).__name__}: {name} is {value}; it must not be negative"
                ).add_place(user_place())

    def _create_state(self, param: Tensor, group: ParamGroup) -> dict[str, Tensor]:
        """Return the state of one parameter; subclasses write this."""
        return {}

    def _updates(
        self, group: ParamGroup, params: list[Tensor], grads: list[Tensor], found_inf: Any
    ) -> list[Update]:
        """Record the update of parameters of one device; subclasses write this with ``_record``."""
        raise NotImplementedError(f"{type(self).__name__}._updates is not written")

    def _record(
        self,
        update: Any,
        group: ParamGroup,
        params: list[Tensor],
        grads: list[Tensor],
        found_inf: Tensor | None,
        states: tuple[str, ...] = (),
        scalars: tuple[str, ...] = ("lr", "weight_decay"),
        counters: tuple[Tensor, ...] = (),
        values: list[Tensor] | None = None,
        **attrs: Any,
    ) -> list[Update]:
        """Call an update op of ``ops/update.py``; its inputs and outputs are in the order that file gives.

        ``values`` are the tensors to update where they are not the parameters themselves.
        """
        replaced = list(values or params)
        for name in states:
            replaced += [self._state[p][name] for p in params]
        inputs = [*replaced[: len(params)], *grads, *replaced[len(params) :], *counters]
        replaced += counters
        device = params[0].device
        inputs += [t if t.device is device else t.to(device) for t in map(group.tensor, scalars)]
        if counters:
            attrs["steps"] = len(counters)
        if found_inf is not None:
            inputs.append(found_inf)
            attrs["has_found_inf"] = True
        results = update(*inputs, count=len(params), **attrs)
        return list(
            zip(replaced, results if isinstance(results, tuple) else (results,), strict=True)
        )

    def _counters(self, group: ParamGroup, params: list[Tensor]) -> tuple[Tensor, ...]:
        """Return the step counters of some parameters: one that they share, or one for each.

        Parameters of a group share a counter until some of them are left out of a step; then these part.
        """
        shared = {id(self._state[p]["step"]) for p in params}
        if len(shared) == 1:
            counter = self._state[params[0]]["step"]
            if len(params) < sum(self._state[p]["step"] is counter for p in group["params"]):
                new = _copy(counter)
                for p in params:
                    self._state[p]["step"] = new
            return (self._state[params[0]]["step"],)
        uses: dict[int, int] = {}
        for p in group["params"]:
            uses[id(self._state[p]["step"])] = uses.get(id(self._state[p]["step"]), 0) + 1
        for p in params:
            if uses[id(self._state[p]["step"])] > 1:
                self._state[p]["step"] = _copy(self._state[p]["step"])
        return tuple(self._state[p]["step"] for p in params)

    def step(self) -> Self:
        """Update all parameters that have a gradient; returns the optimizer.

        After ``GradScaler.unscale`` found an infinite or NaN gradient, parameters and state keep their values.
        """
        updates: list[Update] = []
        for group in self.param_groups:
            for params, grads in _buckets(group["params"]):
                updates += self._updates(group, params, grads, _found_inf(params))
        for handle, new in updates:
            handle._assign(new)
        self._forget_scaler()
        graph.request_flush()
        return self

    def clear_grad(self) -> Self:
        """Set the gradient of each parameter to None; returns the optimizer."""
        for group in self.param_groups:
            for param in group["params"]:
                param.grad = None
        self._forget_scaler()
        return self

    def _forget_scaler(self) -> None:
        if FOUND_INF:
            for group in self.param_groups:
                for param in group["params"]:
                    FOUND_INF.pop(id(param), None)

    def state_dict(self, keep_var: bool = False) -> dict[str, Any]:
        """Return groups and state; parameters are numbered through all groups.

        Parameters
        ----------
        keep_var : bool, default False
            True: the state tensors themselves; False: NumPy arrays.

        Returns
        -------
        dict
            ``param_groups``: a list of dicts; ``state``: number to name to array.
        """
        numbers = {
            id(p): i
            for i, p in enumerate(p for group in self.param_groups for p in group["params"])
        }
        groups = []
        for group in self.param_groups:
            saved = {
                k: v.item() if isinstance(v, Tensor) else v
                for k, v in group.items()
                if k != "params"
            }
            groups.append({**saved, "params": [numbers[id(p)] for p in group["params"]]})
        state = {
            numbers[id(p)]: {
                name: t if keep_var else np.array(t.numpy()) for name, t in tensors.items()
            }
            for p, tensors in self._state.items()
        }
        return {"param_groups": groups, "state": state}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set what ``state_dict`` returned; on an error nothing has changed.

        Parameters
        ----------
        state : dict
            From an optimizer of the same class, with groups of the same sizes.

        Raises
        ------
        ArgumentError
            The groups or the state do not fit. The text lists what does not.
        """
        saved_groups, saved_state = state["param_groups"], state["state"]
        faults = []
        if len(saved_groups) != len(self.param_groups):
            faults.append(
                f"{len(saved_groups)} groups were given; there are {len(self.param_groups)}"
            )
        new: list[tuple[Tensor, Any]] = []
        steps: list[tuple[Tensor, Any]] = []
        for i, (group, saved) in enumerate(zip(self.param_groups, saved_groups)):
            if len(saved["params"]) != len(group["params"]):
                faults.append(
                    f"group {i}: {len(saved['params'])} parameters were given; it has {len(group['params'])}"
                )
            missing = [name for name in self._defaults if name not in saved]
            faults += [f"group {i}: {name} is missing" for name in missing]
            for number, param in zip(saved["params"], group["params"]):
                values = saved_state.get(number, saved_state.get(str(number), {}))
                more = [name for name in values if name not in self._state[param]]
                faults += [f"group {i}, parameter {number}, {name}: unexpected" for name in more]
                for name, tensor in self._state[param].items():
                    shape = np.shape(values[name]) if name in values else None
                    if shape != tensor.shape:
                        given = "nothing was given" if shape is None else f"shape {shape} was given"
                        faults.append(
                            f"group {i}, parameter {number}, {name}: {given}; it has {tensor.shape}"
                        )
                    elif name == "step":
                        steps.append((param, values[name]))
                    else:
                        new.append((tensor, values[name]))
        if faults:
            raise ArgumentError(
                f"load_state_dict: the state does not fit this {type(self).__name__}; nothing was changed"
                + "".join(f"\n  {fault}" for fault in faults[:20])
            ).add_place(user_place())
        for group, saved in zip(self.param_groups, saved_groups):
            group.update(
                {
                    k: tuple(v) if isinstance(v, list) else v
                    for k, v in saved.items()
                    if k != "params"
                }
            )
        for tensor, value in new:
            tensor.set_value(value)
        self._load_steps(steps)
        graph.bump_epoch()

    def _load_steps(self, steps: list[tuple[Tensor, Any]]) -> None:
        """Set step counters; parameters that share one keep sharing it where their values agree."""
        sharing: dict[int, list[tuple[Tensor, int]]] = {}
        for param, value in steps:
            sharing.setdefault(id(self._state[param]["step"]), []).append((param, int(value)))
        for members in sharing.values():
            for value in sorted({number for _, number in members}):
                some = [param for param, number in members if number == value]
                counter = self._state[some[0]]["step"]
                if len(some) < len(members):
                    counter = _copy(counter)
                    for param in some:
                        self._state[param]["step"] = counter
                counter.set_value(value)

    def __repr__(self) -> str:
        groups = [
            f"{len(g['params'])} parameters, "
            + ", ".join(f"{k}={v!r}" for k, v in g.items() if k != "params")
            for g in self.param_groups
        ]
        return f"{type(self).__name__}(\n  " + "\n  ".join(groups) + "\n)"


def zeros_for(param: Tensor) -> Tensor:
    """Return a state tensor of zeros, of the parameter's shape and accumulation dtype, on its device."""
    return Tensor.from_node(upload(np.zeros(param.shape, wide_of(param.dtype).dtype), param.device))


def _copy(counter: Tensor) -> Tensor:
    """Return a new leaf with the value of a step counter."""
    node = counter._node
    if node.buffer is None:
        graph.evaluate((node,))
    return Tensor.from_node(upload(np.array(node.buffer.array), counter.device))


def _listed(params: Any, what: str) -> list[Any]:
    if not isinstance(params, Iterable) or isinstance(params, (set, frozenset, str, Mapping)):
        raise DTypeError(
            f"optimizer: {what} is a {type(params).__name__}; it must be a Parameter or an ordered iterable of them"
        ).add_place(user_place())
    return list(params)


def _buckets(params: list[Tensor]) -> Iterable[tuple[list[Tensor], list[Tensor]]]:
    """Return the parameters that have a gradient, and these, in two lists for each device."""
    found: dict[Any, tuple[list[Tensor], list[Tensor]]] = {}
    for param in params:
        grad = param.grad
        if grad is not None:
            chosen, grads = found.setdefault(param.device, ([], []))
            chosen.append(param)
            grads.append(grad)
    return found.values()


def _found_inf(params: list[Tensor]) -> Tensor | None:
    """Return the flag that ``GradScaler.unscale`` left on the parameters, or None."""
    if not FOUND_INF:
        return None
    found = [(p, FOUND_INF[id(p)]) for p in params if id(p) in FOUND_INF]
    flags = {id(flag): flag for p, (ref, flag) in found if ref() is p}
    result = None
    for flag in flags.values():
        result = flag if result is None else logical_or(result, flag)
    return result
