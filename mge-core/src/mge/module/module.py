"""The base of all modules: a tree of parameters, found by looking at attributes.

In: attributes that are tensors, modules, or lists, tuples and dicts of these. Out: ``Module`` with named
iteration, hooks, training mode and state dicts. After ``tensor``; before every other file of this package.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

import numpy as np

from .. import graph
from ..device import as_device
from ..errors import ArgumentError, MgeError, UnsupportedError, place_of, user_place
from ..mode import MODE
from ..tensor import ModuleBuffer, Parameter, Tensor
from .loading import misfit, node_for

_OWN = frozenset({"training", "quantize_disabled", "name", "_forward_pre_hooks", "_forward_hooks"})
_CONTAINERS = (list, tuple, dict, set)
_MISSING = object()
_DEFAULTS = {"training": True, "quantize_disabled": False, "name": None}

Array = np.ndarray | np.generic | Tensor


class _Calls(threading.local):
    depth = 0  # of Module calls on this thread's stack


_CALLS = _Calls()
_T = TypeVar("_T")


class HookHandler:
    """What registering a hook returns: ``remove`` takes the hook away again.

    Parameters
    ----------
    hooks : dict
        The module's hooks of one kind.
    hook : callable
    """

    _next = 0

    def __init__(self, hooks: dict[int, Callable], hook: Callable) -> None:
        self._hooks = hooks
        self._key = HookHandler._next
        HookHandler._next += 1
        hooks[self._key] = hook
        graph.bump_epoch()

    def remove(self) -> None:
        """Take the hook away; a second call does nothing."""
        if self._hooks.pop(self._key, None) is not None:
            graph.bump_epoch()


class Module:
    """A tree of parameters: set tensors and modules as attributes, write ``forward``.

    An attribute that is a ``Parameter`` is learned; any other Tensor is a buffer, kept and saved beside the
    parameters. Modules and tensors are also found in lists, tuples and dicts, at any depth, so there is no
    ``ModuleList``. An object that is reached in two ways is yielded once, under its first name.

    Parameters
    ----------
    name : str, optional
        A note for prints.

    Attributes
    ----------
    training : bool
        True after construction and ``train()``, False after ``eval()``.
    quantize_disabled : bool
        Set by ``disable_quantize``: quantisation leaves this module alone.

    Notes
    -----
    Assigning a plain Tensor turns it into a ``ModuleBuffer``. While a function is traced, assigning one of
    the same type to an attribute that holds a buffer rebinds that buffer, so that the update is replayed.
    Subclasses may leave out ``super().__init__()``.

    Examples
    --------
    >>> class Scale(Module):
    ...     def __init__(self):
    ...         self.weight = Parameter([2.0])
    ...     def forward(self, x):
    ...         return x * self.weight
    >>> [name for name, _ in Scale().named_parameters()]
    ['weight']
    """

    # Defaults of the class, so that a subclass may leave out the base constructor.
    training: bool = True
    quantize_disabled: bool = False
    name: str | None = None
    _forward_pre_hooks: Mapping[int, Callable] = {}
    _forward_hooks: Mapping[int, Callable] = {}

    def __init__(self, name: str | None = None) -> None:
        self.name = name

    # Calls.

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Return the module's outputs; subclasses write it, users call the module itself."""
        raise UnsupportedError(
            f"{type(self).__name__}: the class has no forward; a module needs one"
        )

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        calls = _CALLS
        depth = calls.depth
        calls.depth = depth + 1
        try:
            if self._forward_pre_hooks or self._forward_hooks:
                outputs = self._forward_with_hooks(inputs, options)
            else:
                outputs = self.forward(*inputs, **options)
        except MgeError as error:
            _add_path(error, self, depth == 0)
            raise
        finally:
            calls.depth = depth
        if not depth:
            graph.boundary()
        return outputs

    def _forward_with_hooks(self, inputs: tuple, options: dict[str, Any]) -> Any:
        for pre_hook in list(self._forward_pre_hooks.values()):
            changed = pre_hook(self, inputs)
            if changed is not None:
                inputs = changed if isinstance(changed, tuple) else (changed,)
        outputs = self.forward(*inputs, **options)
        for hook in list(self._forward_hooks.values()):
            changed = hook(self, inputs, outputs)
            if changed is not None:
                outputs = changed
        return outputs

    def register_forward_pre_hook(self, hook: Callable) -> HookHandler:
        """Call ``hook(module, inputs)`` before each forward.

        What it returns, if not None, replaces the inputs.
        """
        return HookHandler(self.__dict__.setdefault("_forward_pre_hooks", {}), hook)

    def register_forward_hook(self, hook: Callable) -> HookHandler:
        """Call ``hook(module, inputs, outputs)`` after each forward.

        What it returns, if not None, replaces the outputs.
        """
        return HookHandler(self.__dict__.setdefault("_forward_hooks", {}), hook)

    # Attributes.

    def __setattr__(self, name: str, value: Any) -> None:
        old = self.__dict__.get(name, _DEFAULTS.get(name, _MISSING))
        if old is value and not isinstance(value, _CONTAINERS):
            return
        if type(value) is Tensor:
            if isinstance(old, ModuleBuffer) and _is_traced() and _same_type(old, value):
                old._assign(value)
                return
            value.__class__ = ModuleBuffer
        object.__setattr__(self, name, value)
        graph.bump_epoch()

    def __delattr__(self, name: str) -> None:
        object.__delattr__(self, name)
        graph.bump_epoch()

    # Iteration.

    def _walk(self, recursive: bool, prefix: str, seen: set[int]) -> Iterator[tuple[str, Any]]:
        """Yield (dotted name, tensor or module) below this module, in the order of attributes, each once."""
        seen.add(id(self))
        for key, value in list(self.__dict__.items()):
            if key not in _OWN:
                for name, leaf in _expand(prefix + key, value, seen):
                    yield name, leaf
                    if recursive and isinstance(leaf, Module):
                        yield from leaf._walk(True, name + ".", seen)

    def _named(
        self,
        kind: type[_T] | tuple[type[_T], ...],
        recursive: bool = True,
        prefix: str | None = None,
    ) -> Iterator[tuple[str, _T]]:
        for name, leaf in self._walk(recursive, f"{prefix}." if prefix else "", set()):
            if isinstance(leaf, kind):
                yield name, leaf

    def named_parameters(
        self, prefix: str | None = None, recursive: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """Yield (dotted name, parameter), each parameter once."""
        return self._named(Parameter, recursive, prefix)

    def parameters(self, recursive: bool = True) -> Iterator[Parameter]:
        """Yield the parameters, each once, in the order of ``named_parameters``."""
        return (leaf for _, leaf in self.named_parameters(recursive=recursive))

    def named_buffers(
        self, prefix: str | None = None, recursive: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield (dotted name, buffer) of the tensors that are no parameters, each once."""
        named = self._named(Tensor, recursive, prefix)
        return ((name, leaf) for name, leaf in named if not isinstance(leaf, Parameter))

    def buffers(self, recursive: bool = True) -> Iterator[Tensor]:
        """Yield the tensors that are no parameters, each once."""
        return (leaf for _, leaf in self.named_buffers(recursive=recursive))

    def named_tensors(
        self, prefix: str | None = None, recursive: bool = True
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield (dotted name, tensor) of parameters and buffers, each once."""
        return self._named(Tensor, recursive, prefix)

    def tensors(self, recursive: bool = True) -> Iterator[Tensor]:
        """Yield parameters and buffers, each once."""
        return (leaf for _, leaf in self.named_tensors(recursive=recursive))

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """Yield (name, module) of the modules directly below this one, each once."""
        return self._named(Module, recursive=False)

    def children(self) -> Iterator[Module]:
        """Yield the modules directly below this one, each once."""
        return (leaf for _, leaf in self.named_children())

    def named_modules(self, prefix: str | None = None) -> Iterator[tuple[str, Module]]:
        """Yield (dotted name, module) of this module, named ``prefix``, and all below it."""
        yield prefix or "", self
        yield from self._named(Module, prefix=prefix)

    def modules(self) -> Iterator[Module]:
        """Yield this module and all below it, each once."""
        return (leaf for _, leaf in self.named_modules())

    def apply(self, fn: Callable[[Module], Any]) -> None:
        """Call ``fn`` with this module and each module below it."""
        for module in list(self.modules()):
            fn(module)

    # Modes.

    def train(self, mode: bool = True, recursive: bool = True) -> Self:
        """Set ``training`` here and, if ``recursive``, below; returns the module."""
        for module in list(self.modules()) if recursive else [self]:
            module.training = mode
        return self

    def eval(self) -> Self:
        """Set inference mode: ``train(False)``."""
        return self.train(False)

    def disable_quantize(self, value: bool = True) -> None:
        """Make quantisation leave this module and all below it alone."""
        for module in list(self.modules()):
            module.quantize_disabled = value

    def zero_grad(self) -> None:
        """Set the gradient of each parameter to None."""
        for parameter in self.parameters():
            parameter.grad = None

    def replace_param(
        self, params: Mapping[int, Parameter] | Mapping[str, Parameter], start_pos: int = 0
    ) -> int:
        """Put other handles in the place of parameters, by position or by dotted name.

        Parameters
        ----------
        params : dict of int to Parameter, or of str to Parameter
            Keys are positions in ``named_parameters``, counted from ``start_pos``, or names.
        start_pos : int, default 0
            The position of this module's first parameter.

        Returns
        -------
        int
            The number of parameters of this module.

        Raises
        ------
        ArgumentError
            The shape or dtype of a new parameter differs, or it is not reached through an attribute.
        """
        named = list(self.named_parameters())
        chosen = []
        for position, (name, old) in enumerate(named, start_pos):
            new = params.get(position, params.get(name))  # type: ignore[call-overload]
            if new is not None:
                if new.shape != old.shape or new.dtype != old.dtype:
                    raise ArgumentError(
                        f"replace_param: {name} is {old.dtype} {old.shape} and the new parameter {new.dtype} "
                        f"{new.shape}; shape and dtype must agree"
                    )
                chosen.append((old, new))
        for old, new in chosen:
            for module in self.modules():
                for key, value in list(module.__dict__.items()):
                    if value is old:
                        setattr(module, key, new)
                    elif isinstance(value, _CONTAINERS) and any(
                        leaf is old for _, leaf in _expand("", value, set())
                    ):
                        raise ArgumentError(
                            f"replace_param: a parameter in the {type(value).__name__} {key!r} stays"
                        )
        return len(named)

    def to(self, device: Any) -> Self:
        """Move parameters and buffers to a device; returns the module.

        Make optimizers afterwards: their state stays where it is.
        """
        target = as_device(device)
        for tensor in self.tensors():
            if tensor.device is not target:
                tensor._rebind(tensor.to(target)._node)
        return self

    # State.

    def state_dict(
        self, rst: dict[str, Any] | None = None, prefix: str = "", keep_var: bool = False
    ) -> OrderedDict[str, Any]:
        """Return the values of all parameters and buffers by dotted name.

        Parameters
        ----------
        rst : dict, optional
            Where to put them; by default a new dict.
        prefix : str
            Put before each name.
        keep_var : bool, default False
            True: the tensors themselves; False: read-only NumPy arrays.

        Returns
        -------
        OrderedDict of str to ndarray or Tensor
        """
        result = rst if rst is not None else OrderedDict()
        named = list(self.named_tensors())
        if not keep_var:
            graph.evaluate([tensor._node for _, tensor in named])  # one run for all that is pending
        for name, tensor in named:
            result[prefix + name] = tensor if keep_var else tensor.numpy()
        return result  # type: ignore[return-value]

    def load_state_dict(
        self,
        state_dict: Mapping[str, Array] | Callable[[str, Tensor], Array | None],
        strict: bool = True,
    ) -> tuple[list[str], list[str]]:
        """Set parameters and buffers from a state dict; on an error nothing has changed.

        Parameters
        ----------
        state_dict : dict of str to array or Tensor, or callable
            A callable gets a name and the tensor to be set; it returns the new value, or None to skip it.
        strict : bool, default True
            Whether names that are missing here or there are an error.

        Returns
        -------
        missing, unexpected : list of str
            Names that got no value, and names that were not used.

        Raises
        ------
        ArgumentError
            A shape differs, a dtype cannot be cast without changing its kind, or (when strict) names differ.
            The text lists all of them.

        Notes
        -----
        Values are cast to the dtype that the module has and copied to its device.
        """
        named = dict(self.named_tensors())
        if callable(state_dict):
            given = {
                name: value
                for name, tensor in named.items()
                if (value := state_dict(name, tensor)) is not None
            }
        else:
            given = dict(state_dict)
        unexpected = [name for name in given if name not in named and not self._is_alias(name)]
        missing = [name for name in named if name not in given]
        faults = [
            fault
            for name, t in named.items()
            if name in given and (fault := misfit(name, t, given[name]))
        ]
        if strict:
            faults += [f"{name}: missing" for name in missing] + [
                f"{name}: unexpected" for name in unexpected
            ]
        if faults:
            listed = "".join(f"\n  {fault}" for fault in faults[:20])
            more = f"\n  and {len(faults) - 20} more" if len(faults) > 20 else ""
            raise ArgumentError(
                f"load_state_dict: {type(self).__name__} has {len(named)} tensors and {len(faults)} do not fit; "
                f"nothing was changed{listed}{more}",
                hint="strict=False loads what fits by name; shapes must always agree",
            ).add_place(user_place())
        new = [(t, node_for(t, given[name])) for name, t in named.items() if name in given]
        for tensor, node in new:
            tensor._rebind(node)
        graph.bump_epoch()
        return missing, unexpected

    def _is_alias(self, name: str) -> bool:
        """Whether a dotted name reaches a tensor that is yielded under another name."""
        value: Any = self
        for part in name.split("."):
            if isinstance(value, Module):
                value = value.__dict__.get(part)
            elif isinstance(value, dict):
                value = value.get(part)
            elif isinstance(value, (list, tuple)) and part.isdigit() and int(part) < len(value):
                value = value[int(part)]
            else:
                return False
        return isinstance(value, Tensor)

    # Text.

    def _module_info_string(self) -> str:
        """Return what stands between the brackets of the module's line; subclasses write it."""
        return ""

    def __repr__(self) -> str:
        children = [
            f"({name}): {child!r}".replace("\n", "\n  ") for name, child in self.named_children()
        ]
        info = self._module_info_string()
        if not children:
            return f"{type(self).__name__}({info})"
        return f"{type(self).__name__}({info}\n  " + "\n  ".join(children) + "\n)"


def _expand(name: str, value: Any, seen: set[int]) -> Iterator[tuple[str, Any]]:
    """Yield (name, leaf) of the tensors and modules in nested lists, tuples and dicts, each object once."""
    if not isinstance(value, (Tensor, Module, list, tuple, dict)) or id(value) in seen:
        return
    seen.add(id(value))
    if isinstance(value, (Tensor, Module)):
        yield name, value
        return
    items: Iterable = list(value.items()) if isinstance(value, dict) else enumerate(value)
    for key, part in items:
        yield from _expand(f"{name}.{key}", part, seen)


def _is_traced() -> bool:
    recording = MODE.get().recording
    return recording is not None and bool(getattr(recording.owner, "traces", False))


def _same_type(x: Tensor, y: Tensor) -> bool:
    return x._node.type is y._node.type and x.device is y.device


def _add_path(error: MgeError, module: Module, is_outermost: bool) -> None:
    """Put the path of the module in which an error arose before its place: ``Net.head (Linear), model.py:41``."""
    notes = error.__dict__
    inner = notes.setdefault("_module", module)
    if is_outermost and not notes.get("_has_path"):
        notes["_has_path"] = True
        path = next((name for name, found in module.named_modules() if found is inner), "")
        kind = type(inner).__name__
        where = f"{type(module).__name__}.{path} ({kind})" if path else kind
        place = error.place or place_of(error.__traceback__) or user_place()
        error.place = f"{where}, {place}" if place else where
