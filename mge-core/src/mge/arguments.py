"""The arguments of a call: which are inputs, which are attributes, and the one stored form of each.

In: the signature of a shape rule, the arguments of a call. Out: inputs and the types that they are cast to, and
attributes in the signature's order.
After ``graph``; before ``op``.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from .dtype import as_dtype, float_of, promote
from .errors import ArgumentError
from .graph import Graph
from .types import Type

if TYPE_CHECKING:
    from .op import Op


class Arguments:
    """What a shape rule's signature says about the arguments of its op.

    Attributes
    ----------
    name : str
        Of the op, for error messages.
    input_names, attr_names : tuple of str
    variadic : bool
        The op takes any number of tensors (``*inputs``).
    optional_inputs : int
        How many of the last inputs may be left out.
    """

    def __init__(self, rule: Callable[..., Any], name: str) -> None:
        self.name = name
        self.signature = inspect.signature(rule)
        parameters = self.signature.parameters.values()
        self.variadic = any(p.kind is p.VAR_POSITIONAL for p in parameters)
        self.input_names = tuple(p.name for p in parameters if p.kind is not p.KEYWORD_ONLY)
        self.optional_inputs = sum(
            p.default is None for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD
        )
        self.attr_names = tuple(p.name for p in parameters if p.kind is p.KEYWORD_ONLY)
        self._defaults = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        self._kinds = {p.name: str(p.annotation) for p in parameters}

    def bind(self, args: tuple, attrs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
        """Sort the arguments of a call into inputs and attributes, by the rules of the signature.

        Positional arguments past the inputs are attributes, in order; a list of tensors stands for ``*inputs``.
        """
        if self.variadic:
            if args and isinstance(args[0], (list, tuple)):
                inputs, rest = tuple(args[0]), args[1:]
            elif args and not any(n in attrs for n in self.input_names):
                inputs, rest = args, ()
            else:
                inputs, rest = tuple(attrs.pop(self.input_names[0], ())), args
            if len(inputs) < len(self.input_names) - 1:  # some are named before ``*extras``
                raise self.error(f"missing input {self.input_names[len(inputs)]!r}")
        else:
            count = len(self.input_names)
            inputs, rest = args[:count], args[count:]
            for name in self.input_names[len(inputs) :]:
                if name in attrs:
                    inputs += (attrs.pop(name),)
                elif len(inputs) < count - self.optional_inputs:
                    raise self.error(f"missing input {name!r}")
                else:
                    inputs += (None,)
            while inputs and inputs[-1] is None:
                inputs = inputs[:-1]
            if any(i is None for i in inputs):
                missing = self.input_names[inputs.index(None)]
                raise self.error(f"input {missing!r} is None, and a later input is given")
            if len(inputs) < count - self.optional_inputs:
                raise self.error(f"input {self.input_names[len(inputs)]!r} is None")
        if len(rest) > len(self.attr_names):
            raise self.error(f"{len(args)} positional arguments are too many")
        for name, value in zip(self.attr_names, rest, strict=False):
            if name in attrs:
                raise self.error(f"argument {name!r} is given twice")
            attrs[name] = value
        unknown = attrs.keys() - self._defaults.keys()
        if unknown:
            raise self.error(f"unknown argument {sorted(unknown)[0]!r}")
        return inputs, attrs

    def normal_attrs(self, attrs: dict[str, Any]) -> tuple[tuple[str, Any], ...]:
        """Return all attributes with defaults filled in, each in its one stored form, in the signature's order."""
        result = []
        for name in self.attr_names:
            value = attrs.get(name, self._defaults[name])
            if value is inspect.Parameter.empty:
                raise self.error(f"missing argument {name!r}")
            result.append((name, self._normal_value(name, value)))
        return tuple(result)

    def _normal_value(self, name: str, value: Any, kind: str = "") -> Any:
        """Return an attribute in its one stored form; a value that its annotation does not allow is an error."""
        kind = kind or self._kinds[name]
        items = kind.partition("tuple[")[2].rpartition("]")[0]
        plain = kind.replace(f"tuple[{items}]", "")
        if isinstance(value, np.ndarray) and value.ndim <= 1:
            value = value.tolist()
        if isinstance(value, (list, tuple)):
            if items:
                return tuple(self._normal_value(name, v, items) for v in value)
        elif value is None:
            if "None" in plain:
                return None
        elif isinstance(value, (str, bytes, Graph)):
            if type(value).__name__ in plain:
                return value
            if "DType" in plain:
                return as_dtype(value)
        elif "DType" in plain:
            return as_dtype(value)
        elif "float" in plain and isinstance(value, (int, float, np.number, np.bool_)):
            return (
                float(value) if value == value else np.nan
            )  # one object for all, so that keys compare equal
        elif "bool" in plain and isinstance(value, (bool, np.bool_)):
            return bool(value)
        elif "int" in plain and isinstance(value, (int, np.integer, np.bool_)):
            return int(value)
        elif "bool" in plain and isinstance(value, (int, np.integer)) and value in (0, 1):
            return bool(value)
        elif (
            "int" in plain and isinstance(value, (float, np.floating)) and float(value).is_integer()
        ):
            return int(value)
        elif "int" in plain and hasattr(value, "_node") and value.ndim == 0:
            return value.__index__()
        elif callable(value) and "Callable" in plain:
            return value
        elif items and hasattr(value, "_node") and value.ndim == 1:
            return tuple(self._normal_value(name, v, items) for v in value.tolist())
        elif items and (isinstance(value, (int, float, np.number)) or hasattr(value, "_node")):
            return (self._normal_value(name, value, items),)
        raise self.error(
            f"{name} is {value!r} ({type(value).__name__}); it must be {self._kinds[name]}"
        )

    def error(self, what: str) -> ArgumentError:
        """Return the error for a call that does not fit the signature."""
        return ArgumentError(f"{self.name}: {what}", hint=f"{self.name}{self.signature}")


def promoted_types(op: Op, types: Sequence[Any]) -> tuple[Type, ...]:
    """Return the types that the op's inputs take: numbers become 0-d Types, and promoted inputs share a dtype."""
    chosen = range(len(types)) if op.promoted is None else op.promoted
    if op.promotes is None or not types:
        if all(isinstance(t, Type) for t in types):
            return tuple(types)
        strong = [t.dtype for t in types if isinstance(t, Type)]
        return tuple(t if isinstance(t, Type) else Type((), promote(*strong, t)) for t in types)
    dtype = promote(
        *(
            types[i].dtype if isinstance(types[i], Type) else types[i]
            for i in chosen
            if i < len(types)
        )
    )
    if op.promotes == "float":
        dtype = float_of(dtype)
    result = list(types)
    for i, type_ in enumerate(types):
        if i in chosen:
            result[i] = Type(type_.shape if isinstance(type_, Type) else (), dtype)
        elif not isinstance(type_, Type):
            result[i] = Type((), promote(type_))
    return tuple(result)
