"""Checkpoints: nested containers of tensors, arrays and plain values as files.

In: an object, a path or file. Out: one safetensors file with a JSON record; and the object again, types included.
After ``modelfile``; before ``interop``.
"""

from __future__ import annotations

import io
import os
import pickle
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from .archive import (
    Archive,
    NotPlain,
    check_format,
    from_json,
    is_path,
    looks_like_archive,
    read_archive,
    replacing,
    to_json,
    write_archive,
)
from .device import as_device
from .dtype import DTYPES
from .errors import ArgumentError, DeviceError, FileFormatError, MgeError, PluginError, user_place
from .run import eval as evaluate_tensors
from .tensor import ModuleBuffer, Parameter, Tensor, upload
from .tree import flatten, unflatten

__all__ = ["load", "save"]

FORMAT = "mge.data"
VERSION = "1"
_CLASSES = {cls.__name__: cls for cls in (Tensor, Parameter, ModuleBuffer)}
_PLAIN_DTYPES = {*DTYPES, "complex64"}  # what a safetensors file has
_OTHER_DTYPE = re.compile(r"[<>|](?:[biufcSU]\d{1,9}|[mM]8(?:\[\w{1,20}\])?)")  # kept as bytes

MapLocation = str | Mapping[str, str] | Callable[[str], str] | None


def save(obj: Any, f: Any, pickle_module: Any = None, pickle_protocol: int | None = None) -> None:
    """Write nested containers of tensors, arrays and plain values to a file.

    Parameters
    ----------
    obj : object
        For example ``{"model": net.state_dict(), "optimizer": opt.state_dict(), "epoch": 3}``. Plain values are
        numbers, texts, bytes, bools, None and dtypes.
    f : path, or file open for writing bytes
        An old file stays until the new one is complete.
    pickle_module : module, optional
        Write by this module's ``dump`` instead, as MegEngine does: for objects of classes of your own.
        Reading such a file runs code that is in it.
    pickle_protocol : int, optional
        For ``pickle_module``.

    Raises
    ------
    ArgumentError
        A part of ``obj`` is none of these; the error says where it is.

    Notes
    -----
    The file is a safetensors file, which other tools read: an array's name is the path to it. Types come back as
    they were: tuple and list, keys of dicts, Tensor, Parameter and array, dtypes, NaN. Other dicts (OrderedDict) come
    back as dict. A tensor or array that is there twice is stored once, and is one object again.

    Examples
    --------
    >>> import io
    >>> file = io.BytesIO()
    >>> save({"w": tensor([1.0, 2.0]), "epoch": 3}, file)
    >>> _ = file.seek(0)
    >>> load(file)
    {'w': Tensor([1., 2.], dtype=float32, device=ref:0), 'epoch': 3}
    """
    if pickle_module is not None:
        return _save_pickle(obj, f, pickle_module, pickle_protocol)
    writer = _Writer()
    try:
        tree = to_json(obj, "obj", writer.leaf)
        writer.read_tensors()
        write_archive(f, {"format": FORMAT, "version": VERSION, "tree": tree}, writer.arrays)
    except NotPlain as error:
        raise ArgumentError(
            f"save: {error.path} is a {type(error.value).__module__}.{type(error.value).__qualname__}; a file holds "
            "tensors, arrays, numbers, texts, bytes, bools, None, and dicts, lists and tuples of them",
            hint="save its state_dict(), or pass pickle_module=pickle and load with allow_pickle=True",
        ).add_place(user_place()) from None
    except MgeError as error:
        raise error.add_place(user_place()) from None
    return None


def _save_pickle(obj: Any, f: Any, pickle_module: Any, protocol: int | None) -> None:
    options = {} if protocol is None else {"protocol": protocol}
    if not is_path(f):
        pickle_module.dump(obj, f, **options)
        return
    with replacing(f) as made, open(made, "wb") as file:
        pickle_module.dump(obj, file, **options)


class _Writer:
    """Gives tensors and arrays a name in the file, and their values to ``arrays``."""

    def __init__(self) -> None:
        self.arrays: dict[str, Any] = {}
        self.known: dict[int, Any] = {}  # id to what the tree says
        self.kept: list[Any] = []  # so that no id is given twice

    def leaf(self, value: Any, path: str) -> Any:
        """Return what stands in the tree for a tensor or array."""
        found = self.known.get(id(value))
        if found is None:
            if type(value) in _CLASSES.values():
                found = {
                    "tensor": [
                        self._new_name(path),
                        type(value).__name__,
                        value.device.name,
                        value.name,
                    ]
                }
            elif type(value) in (np.ndarray, np.memmap):
                found = self._array(value, path)
            else:
                return NotImplemented
            self.known[id(value)] = found
            self.kept.append(value)
            self.arrays[next(iter(found.values()))[0]] = value
        return found

    def _array(self, value: np.ndarray, path: str) -> Any:
        if value.dtype.isnative and value.dtype.name in _PLAIN_DTYPES:
            return {"array": [self._new_name(path)]}
        if _OTHER_DTYPE.fullmatch(value.dtype.str) and not value.dtype.hasobject:
            return {"array": [self._new_name(path), value.dtype.str, list(value.shape)]}
        raise NotPlain(value, f"{path} (an array of {value.dtype})")

    def _new_name(self, path: str) -> str:
        """Return ``model/fc.weight`` for ``obj["model"]["fc.weight"]``."""
        parts = re.findall(r'\["((?:[^"\\]|\\.)*)"\]|\[([^]]*)\]', path.removeprefix("obj"))
        name = "/".join(a or b for a, b in parts) or "data"
        made, number = name, 1
        while made in self.arrays or made == "__metadata__":
            made, number = f"{name}#{number}", number + 1
        return made

    def read_tensors(self) -> None:
        """Replace tensors by their values, computed in one run, and other arrays by their bytes."""
        tensors = [v for v in self.arrays.values() if isinstance(v, Tensor)]
        if tensors:
            evaluate_tensors(*tensors)
        for name, value in self.arrays.items():
            array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
            if not (array.dtype.isnative and array.dtype.name in _PLAIN_DTYPES):
                array = np.frombuffer(array.tobytes(), np.uint8)
            self.arrays[name] = array


def load(
    f: Any, map_location: MapLocation = None, pickle_module: Any = None, allow_pickle: bool = False
) -> Any:
    """Read what ``save`` wrote.

    Parameters
    ----------
    f : path, or file open for reading bytes
    map_location : str, dict or callable, optional
        Where tensors go that were on another device: a device for all, a dict from device to device, or a function
        of the device's name. By default each goes to the device that it was on.
    pickle_module : module, optional
        Reads pickles, where they are allowed; by default ``pickle``.
    allow_pickle : bool, default False
        Read a pickle too. **A pickle runs code that is in it**: only for files of people whom you trust.

    Returns
    -------
    object
        A safetensors file that mge did not write gives a dict of arrays.

    Raises
    ------
    FileFormatError
        The file is cut off or damaged, is no checkpoint, or is a pickle and ``allow_pickle`` is False.
    DeviceError
        A tensor was on a device that is not here, and ``map_location`` does not name another one.
    """
    try:
        start, f = _start_of(f)
        if not looks_like_archive(start):
            return _load_pickle(f, start, map_location, pickle_module, allow_pickle)
        return _load_archive(read_archive(f), f, map_location)
    except MgeError as error:
        raise error.add_place(user_place()) from None


def _start_of(f: Any) -> tuple[bytes, Any]:
    """Return the first bytes, and something that can still be read from the start."""
    if is_path(f):
        with open(f, "rb") as file:
            return file.read(16), os.fspath(f)
    data = f.read()
    if not isinstance(data, bytes):
        raise ArgumentError(
            f"load: the file gives {type(data).__name__}; it must be open for reading bytes"
        )
    return data[:16], io.BytesIO(data)


def _load_archive(archive: Archive, source: Any, map_location: MapLocation) -> Any:
    if archive.record is None:
        return archive.arrays
    record = check_format(archive.record, FORMAT, VERSION, source)
    reader = _Reader(archive.arrays, map_location)
    try:
        tree = from_json(record["tree"], reader.leaf)
    except KeyError:
        raise FileFormatError("record: it has no tree") from None
    unused = sorted(set(archive.arrays) - reader.used)
    if unused:
        raise FileFormatError(
            f"record: the array {unused[0]!r} of the file has no place in its tree"
        )
    return tree


class _Reader:
    """Makes tensors and arrays from what the tree says."""

    def __init__(self, arrays: dict[str, np.ndarray], map_location: MapLocation) -> None:
        self.arrays, self.map_location = arrays, map_location
        self.known: dict[str, Any] = {}
        self.used: set[str] = set()

    def leaf(self, key: str, inside: Any) -> Any:
        """Return the tensor or array for ``{key: inside}``."""
        name = inside[0]
        if name not in self.arrays:
            raise FileFormatError(f"record: the array {str(name)[:60]!r} is not in the file")
        if name not in self.known:
            self.used.add(name)
            self.known[name] = (
                self._tensor(*inside) if key == "tensor" else self._array(key, *inside)
            )
        return self.known[name]

    def _tensor(self, array: str, kind: str, device: str, name: str | None) -> Tensor:
        if self.arrays[array].dtype.name not in DTYPES or not isinstance(name, (str, type(None))):
            raise FileFormatError(f"record: {array!r} is no tensor of mge")
        made = _CLASSES[kind].from_node(
            upload(self.arrays[array], _placed(device, self.map_location))
        )
        if name is not None:
            made.name = name
        return made

    def _array(
        self, key: str, name: str, dtype: str | None = None, shape: list[int] | None = None
    ) -> np.ndarray:
        if key != "array":
            raise FileFormatError(f"record: {key!r} is nothing that a checkpoint holds")
        array = self.arrays[name]
        if dtype is not None:
            if not _OTHER_DTYPE.fullmatch(dtype) or array.dtype != np.uint8:
                raise FileFormatError(
                    f"record: {name!r} has the dtype {dtype!r}, which a checkpoint does not hold"
                )
            array = np.frombuffer(array.tobytes(), np.dtype(dtype)).reshape(shape)
        return array if array.flags.writeable else array.copy()


def _placed(device: str, map_location: MapLocation) -> Any:
    """Return the device for a tensor that was on ``device``."""
    target: Any = device
    if isinstance(map_location, Mapping):
        target = map_location.get(device, device)
    elif callable(map_location):
        target = map_location(device)
    elif map_location is not None:
        target = map_location
    try:
        return as_device(target)
    except (DeviceError, PluginError) as error:
        if target != device:
            raise
        raise DeviceError(
            f"load: a tensor was on {device}, which is not here ({str(error).splitlines()[0]})",
            hint='map_location="ref:0", or another device that is here',
        ) from None


def _load_pickle(
    f: Any, start: bytes, map_location: MapLocation, module: Any, allow_pickle: bool
) -> Any:
    name = repr(f) if is_path(f) else "the file"
    if not allow_pickle:
        is_pickle = start[:1] == b"\x80" or start[:2] in (b"(d", b"(l", b"c_", b"cc", b"PK")
        what = (
            "a pickle, and reading it would run code that is in it"
            if is_pickle
            else "no file that mge.save wrote"
        )
        raise FileFormatError(
            f"{name}: it is {what}",
            hint="mge.load(..., allow_pickle=True), if you trust whoever wrote it"
            if is_pickle
            else None,
        )
    if is_path(f):
        with open(f, "rb") as file:
            obj = (module or pickle).load(file)
    else:
        obj = (module or pickle).load(f)
    if map_location is None:
        return obj
    leaves, form = flatten(obj)
    return unflatten(
        form,
        [
            v.to(_placed(v.device.name, map_location)) if isinstance(v, Tensor) else v
            for v in leaves
        ],
    )
