"""Tensors: what a user holds, a handle on a node's output or on a buffer.

In: data, or calls of ops. Out: ``Tensor`` with NumPy's operators and methods, ``Parameter``, ``tensor``.
After ``ops/*``; before ``tree``.

A Tensor is a value: in-place operators and item assignment rebind this one handle to a new node and never
write through to another one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np

from . import graph
from . import op as op_module
from .dtype import DTYPES, DType, as_dtype
from .errors import ArgumentError, DTypeError, ShapeError, user_place
from .graph import LOCAL, Node, leaf_signature
from .mode import MODE
from .op import OPS
from .operators import Operators
from .ops import indexing
from .types import Shape, Type

read_only: Any = None  # (array, owner) -> array; set by native.py where there is a native part


class Tensor(Operators):
    """An n-dimensional array on a device, or the promise of one.

    Parameters
    ----------
    data : array-like, number or Tensor
        Copied at the call.
    dtype : dtype, optional
        By default Python floats and float64 arrays become float32, Python integers and int64 arrays int32;
        every other dtype stays.
    device : str or Device, optional
    is_const, no_cache : bool
        Accepted for MegEngine's callers, and ignored: constants are found by the graph's passes.
    name : str, optional
    format : str
        ``"default"``, ``"nchw"`` or ``"nhwc"``: kept as a note, layouts are the device's business.

    Raises
    ------
    ArgumentError
        An integer does not fit int32 and no dtype was given.
    DTypeError
        The data is not numeric.
    """

    __slots__ = ("__weakref__", "_grad", "_name", "_node", "_notes")
    _slow: ClassVar[bool] = False

    _node: Node
    _name: str | None

    def __init__(
        self,
        data: Any = (),
        dtype: Any = None,
        device: Any = None,
        is_const: bool = False,
        no_cache: bool = False,
        name: str | None = None,
        format: str = "default",
    ) -> None:
        if isinstance(data, Tensor):
            source = data if dtype is None else data.astype(dtype)
            self._node = _used(source if device is None else source.to(device))._node
        else:
            self._node = upload(as_array(data, dtype), device)
        if name is not None:
            self._name = name
        if format != "default":
            self._notes = {"format": format}

    @classmethod
    def from_node(cls, node: Node) -> Tensor:
        """Return a new handle on a node."""
        made = object.__new__(cls)
        made._node = node
        return made

    # What it is.

    @property
    def shape(self) -> Shape:
        """The size of each axis."""
        return self._node.type.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self._node.type.dtype

    @property
    def device(self) -> Any:
        """The device that holds the value."""
        return self._node.sig.device

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self._node.type.ndim

    @property
    def size(self) -> int:
        """The number of elements."""
        return self._node.type.size

    @property
    def name(self) -> str | None:
        """The name given at construction, or by the module that holds it."""
        return getattr(self, "_name", None)

    @name.setter
    def name(self, value: str | None) -> None:
        self._name = value

    @property
    def grad(self) -> Tensor | None:
        """The gradient that ``GradManager.backward`` accumulated, or None."""
        value = getattr(self, "_grad", None)
        recording = MODE.get().recording
        if recording is not None and recording.owner.traces:
            recording.owner.note_grad_read(self, value)
        return value

    @grad.setter
    def grad(self, value: Tensor | None) -> None:
        recording = MODE.get().recording
        if recording is not None and recording.owner.traces:
            recording.owner.note_grad(self, getattr(self, "_grad", None))
        self._grad = value

    @property
    def format(self) -> str:
        """The layout noted at construction."""
        return getattr(self, "_notes", {}).get("format", "default")

    @property
    def T(self) -> Tensor:
        """The tensor with its axes reversed; a new value."""
        return self.transpose()

    # Reading.

    def numpy(self) -> np.ndarray:
        """Return the value as a read-only NumPy array, which no later computation changes.

        Raises
        ------
        TraceError
            The value is being traced, so it has none yet.
        """
        return _export(self._value())

    def _value(self) -> Any:
        node = self._node
        recording = MODE.get().recording
        if recording is not None:
            recording.owner.refuse_read(self)
        if node.buffer is None:
            graph.evaluate((node,))
        return node.buffer

    def item(self, *index: int) -> Any:
        """Return one element as a Python number.

        Raises
        ------
        ArgumentError
            There is not exactly one element and no index was given.
        """
        if not index and self.size != 1:
            raise ArgumentError(
                f"item: the tensor has shape {self.shape}; without an index it must have 1 element"
            ).add_place(user_place())
        return _in_host(self._value()).item(*index)

    def tolist(self) -> Any:
        """Return nested lists of Python numbers."""
        return _in_host(self._value()).tolist()

    def __bool__(self) -> bool:
        return bool(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __float__(self) -> float:
        return float(self.item())

    def __complex__(self) -> complex:
        return complex(self.item())

    def __index__(self) -> int:
        if self.dtype.is_float:
            raise DTypeError(
                f"index: the tensor is {self.dtype}; an index must be an integer"
            ).add_place(user_place())
        return int(self.item())

    def __len__(self) -> int:
        if not self.ndim:
            raise DTypeError("len: the tensor has no axis; len() needs one").add_place(user_place())
        return self.shape[0]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, value: Any) -> bool:
        return bool((self == value).any())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.numpy()
        if dtype is not None and array.dtype != dtype:
            return array.astype(dtype)
        return array.copy() if copy else array

    def __repr__(self) -> str:
        if self._node.buffer is None and MODE.get().recording is not None:
            return f"Tensor(<traced {self._node.type}>)"
        text = np.array2string(
            _in_host(self._value()), separator=", ", prefix=f"{type(self).__name__}("
        )
        return f"{type(self).__name__}({text}, dtype={self.dtype}, device={self.device})"

    def __format__(self, spec: str) -> str:
        return format(self.item(), spec) if spec else str(self)

    # Rebinding.

    def _rebind(self, node: Node) -> None:
        """Make this handle stand for another node."""
        mode = MODE.get()
        recording = mode.recording or LOCAL.recording
        if recording.owner is not None:
            recording.owner.note_rebind(self, self._node)
        elif node.buffer is None:
            recording.note_rebind(self)
        self._node = node

    def _assign(self, value: Tensor) -> Tensor:
        self._rebind(_used(value)._node)
        return self

    def set_value(self, value: Any) -> None:
        """Replace the value of this handle; shape, dtype and device stay.

        Raises
        ------
        ShapeError
            The shapes differ.
        """
        new = (
            value
            if isinstance(value, Tensor)
            else Tensor(np.asarray(value).astype(self.dtype.dtype), device=self.device)
        )
        if new.shape != self.shape:
            raise ShapeError(
                f"set_value: the tensor has shape {self.shape}; the new value has {new.shape}"
            ).add_place(user_place())
        self._assign(new.astype(self.dtype))

    def reset_zero(self) -> None:
        """Replace the value by zeros."""
        self.set_value(np.zeros(self.shape, self.dtype.dtype))

    def detach(self) -> Tensor:
        """Return the value as a constant: no gradient flows through it."""
        return OPS["detach"](self)

    def to(self, device: Any) -> Tensor:
        """Return the tensor on another device; itself where it is there already."""
        target = _as_device(device)
        return self if target is self.device else Tensor(self.numpy(), self.dtype, target)

    # Pickling goes by value.

    def __reduce__(self) -> tuple:
        return _unpickle, (
            type(self),
            np.array(self.numpy()),
            self.dtype.name,
            self.device.name,
            self.name,
        )

    def __copy__(self) -> Tensor:
        return type(self).from_node(_used(self)._node)

    def __deepcopy__(self, memo: dict) -> Tensor:
        if self._node.buffer is None:
            graph.evaluate((self._node,))
        made = type(self).from_node(upload(np.array(_in_host(self._node.buffer)), self.device))
        if self.name is not None:
            made._name = self._name
        memo[id(self)] = made
        return made

    def __setitem__(self, index: Any, value: Any) -> None:
        self._rebind(indexing.set_item(self, index, value)._node)

    def __getitem__(self, index: Any) -> Tensor:
        return indexing.get_item(self, index)


class Parameter(Tensor):
    """A tensor that a module learns: a slow leaf, which changes at most once a step."""

    __slots__ = ()
    _slow: ClassVar[bool] = True


class ModuleBuffer(Tensor):
    """A tensor that a module keeps beside its parameters, as running statistics: a slow leaf too."""

    __slots__ = ()
    _slow: ClassVar[bool] = True


def tensor(data: Any = (), dtype: Any = None, device: Any = None, **options: Any) -> Tensor:
    """Return a Tensor with a copy of ``data``.

    Parameters
    ----------
    data, dtype, device, **options
        As for ``Tensor``.

    Returns
    -------
    Tensor
    """
    return Tensor(data, dtype, device, **options)


def _used(tensor: Tensor) -> Tensor:
    """Return a tensor whose value passes to another handle; a trace hears by which handle it came in."""
    recording = MODE.get().recording
    if recording is not None:
        recording.enlist(tensor._node, tensor)
    return tensor


def _refuse_overflow(data: Any, dtype: DType) -> None:
    """Raise where Python numbers do not fit an integer dtype; an array's numbers wrap, as NumPy's do."""
    array = np.asarray(data)
    info = np.iinfo(dtype.dtype)
    if (
        array.size
        and array.dtype.kind in "iufO"
        and not ((array >= info.min) & (array <= info.max)).all()
    ):
        raise ArgumentError(
            f"tensor: the data holds numbers from {array.min()} to {array.max()}; "
            f"{dtype} holds {info.min} to {info.max}",
            hint="a wider dtype",
        ).add_place(user_place())


def as_array(data: Any, dtype: Any = None) -> np.ndarray:
    """Return a dense NumPy array of a dtype that mge knows, with the defaults for Python numbers."""
    if dtype is not None:
        dtype = as_dtype(dtype)
        if dtype.is_integer and not hasattr(data, "dtype"):
            _refuse_overflow(data, dtype)
        with np.errstate(all="ignore"):
            return np.asarray(data).astype(dtype.dtype)
    array = np.asarray(data)
    if array.dtype == np.float64:
        return array.astype(np.float32)
    if array.dtype == np.int64:
        if array.size and (
            array.max() > np.iinfo(np.int32).max or array.min() < np.iinfo(np.int32).min
        ):
            raise ArgumentError(
                f"tensor: the data holds integers up to {max(abs(int(array.max())), abs(int(array.min())))}, "
                "which do not fit int32, the default",
                hint='tensor(data, dtype="int64")',
            ).add_place(user_place())
        return array.astype(np.int32)
    if array.dtype.name not in DTYPES:
        raise DTypeError(
            f"tensor: the data has NumPy dtype {array.dtype}; known are {', '.join(DTYPES)}",
            hint="lists must be rectangular and hold numbers",
        ).add_place(user_place())
    return array


def upload(array: np.ndarray, device: Any = None) -> Node:
    """Return a leaf with a copy of a NumPy array."""
    target = op_module.default_device() if device is None else _as_device(device)
    buffer = target.upload(array)
    sig = leaf_signature(Type(array.shape, as_dtype(array.dtype)), target)
    node = Node(sig, (), sig.type, buffer)
    recording = MODE.get().recording
    if recording is not None:
        recording.owner.made.add(node)
    return node


def _as_device(device: Any) -> Any:
    return op_module.as_device(device)


def _in_host(buffer: Any) -> Any:
    """Return a buffer's array, or a copy of it where it is in a device's own memory."""
    array = buffer.array
    return array.numpy() if hasattr(array, "numpy") else array


def _export(buffer: Any) -> np.ndarray:
    """Return a read-only array over a buffer that keeps it alive; a copy of what is in a device's own memory."""
    array = buffer.array
    if hasattr(array, "numpy"):
        array = array.numpy()
        array.flags.writeable = False
        return array
    if not hasattr(buffer, "block"):
        return array
    if read_only is not None:
        return read_only(array, buffer)
    view = np.asarray(buffer)
    return view if view.dtype == array.dtype else view.view(array.dtype)


def _unpickle(
    cls: type[Tensor], array: np.ndarray, dtype: str, device: str, name: str | None
) -> Tensor:
    try:
        node = upload(array, device)
    except Exception:  # the device is not on this machine
        node = upload(array)
    made = cls.from_node(node)
    if name is not None:
        made.name = name
    return made


def _make_constant(value: Any, device: Any = None) -> Tensor:
    """Return an array argument of an op as a tensor: a leaf, or a constant inside a rule."""
    array = as_array(value)
    recording = MODE.get().recording
    if recording is not None and recording.owner.inlines:
        return Tensor.from_node(
            op_module.constant_node(np.ascontiguousarray(array), recording.owner.device, recording)
        )
    return Tensor.from_node(upload(array, device))


op_module.tensor_class = Tensor
op_module.make_constant = _make_constant
