"""One safetensors file with arrays and a JSON record: models and checkpoints.

In: arrays, a record of plain values, a path or file. Out: the file; or arrays and record, checked before use.
After ``types``; before ``graph``.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import safetensors

from .dtype import DTYPES, DType
from .errors import ArgumentError, FileFormatError

__all__: list[str] = []  # no name here is promised to users

KEY = "mge"  # the one entry of the file's metadata; with several, the library would write them in any order
MAX_HEADER_BYTES = 100_000_000  # the limit of the safetensors format
DEPTH = 100  # of nested containers
READERS = {"mge.model": "mge.load_model", "mge.data": "mge.load"}


class Archive(NamedTuple):
    """What a file holds.

    Attributes
    ----------
    record : dict or None
        None for a safetensors file that mge did not write.
    arrays : dict of str to ndarray
    """

    record: dict[str, Any] | None
    arrays: dict[str, np.ndarray]


def is_path(target: Any) -> bool:
    """Whether a target names a file, as opposed to being one."""
    return isinstance(target, (str, os.PathLike))


@contextmanager
def replacing(path: Any) -> Iterator[str]:
    """Give the name of a new file that takes the place of ``path`` if the block succeeds, and goes away if not."""
    path = os.path.realpath(path)
    folder, name = os.path.split(path)
    made = os.path.join(folder, f".{name}.{secrets.token_hex(4)}.part")
    descriptor = os.open(made, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666)
    rights = os.stat(path).st_mode if os.path.isfile(path) else os.fstat(descriptor).st_mode
    os.close(descriptor)
    try:
        yield made
        os.chmod(made, stat.S_IMODE(rights))  # the library makes files that only their owner reads
        with open(made, "rb") as file:
            os.fsync(file.fileno())
        os.replace(made, path)
    except BaseException:
        os.unlink(made)
        raise


def write_archive(target: Any, record: dict[str, Any], arrays: dict[str, np.ndarray]) -> int:
    """Write a file; equal contents give equal bytes. A path keeps its old file until the new one is complete.

    Parameters
    ----------
    target : path, or file open for writing bytes
    record : dict
        Of JSON values; with ``format`` and ``version``.
    arrays : dict of str to ndarray

    Returns
    -------
    int, bytes
        The size of the arrays.
    """
    dense = {name: np.ascontiguousarray(a).reshape(np.shape(a)) for name, a in arrays.items()}
    whole = {**record, "crc32": _checksum(record, dense)}
    metadata = {KEY: json.dumps(whole, ensure_ascii=False)}
    specs = {
        name: safetensors.TensorSpec(
            dtype=a.dtype.name, shape=a.shape, data_ptr=a.ctypes.data, data_len=a.nbytes
        )
        for name, a in dense.items()
    }
    if is_path(target):
        with replacing(target) as made:
            safetensors.serialize_file(specs, made, metadata=metadata)
    else:
        target.write(safetensors.serialize(specs, metadata=metadata))
    return sum(a.nbytes for a in dense.values())


def _checksum(record: dict[str, Any], arrays: dict[str, np.ndarray]) -> int:
    """Return a checksum of everything: it finds damage, and is no protection against intent."""
    value = zlib.crc32(json.dumps(record, ensure_ascii=False).encode("utf-8", "surrogatepass"))
    for name in sorted(arrays):
        array = arrays[name]
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(array.reshape(-1).view(np.uint8).data if array.size else b"", value)
    return value


def looks_like_archive(start: bytes) -> bool:
    """Whether the first bytes of a file are those of a safetensors file: the header's size, then JSON."""
    return (
        len(start) >= 9
        and int.from_bytes(start[:8], "little") <= MAX_HEADER_BYTES
        and start[8:9] == b"{"
    )


def read_archive(source: Any) -> Archive:
    """Read a file, and check it before anything is returned.

    Parameters
    ----------
    source : path, or file open for reading bytes

    Raises
    ------
    FileFormatError
        It is no safetensors file, it is cut off or damaged, or its record is no JSON.
    """
    name = repr(os.fspath(source)) if is_path(source) else "the file"
    try:
        metadata, arrays = _read_path(source) if is_path(source) else _read_bytes(source.read())
    except (
        safetensors.SafetensorError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        OverflowError,
    ) as error:
        raise FileFormatError(
            f"{name}: it is no complete safetensors file ({error})",
            hint="write it, or fetch it, again",
        ) from None
    if KEY not in metadata:
        return Archive(None, arrays)
    try:
        record = json.loads(metadata[KEY])
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{name}: its record {KEY!r} is no JSON ({error})") from None
    if not isinstance(record, dict) or not isinstance(record.get("format"), str):
        raise FileFormatError(f"{name}: its record {KEY!r} must be a JSON object with a format")
    stated = record.pop("crc32", None)
    if stated != _checksum(record, arrays):
        raise FileFormatError(
            f"{name}: its contents do not give the checksum that it states; it was damaged after it was written",
            hint="write it, or fetch it, again",
        )
    return Archive(record, arrays)


def _read_path(path: Any) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    if os.path.isdir(path):  # the library would say "No such device", and not where
        raise IsADirectoryError(errno.EISDIR, "Is a directory, and no file", os.fspath(path))
    with safetensors.safe_open(os.fspath(path), "np") as file:
        return file.metadata() or {}, {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118


_NUMPY_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "BOOL": "bool", "C64": "complex64",
    **{f"{k}{bits}": f"{n}{bits}" for k, n in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)},
}  # fmt: skip


def _read_bytes(data: bytes) -> tuple[dict[str, str], dict[str, np.ndarray]]:
    tensors: Any = safetensors.deserialize(bytes(data))  # type: ignore[no-untyped-call]  # checks sizes and offsets
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    arrays = {
        name: np.frombuffer(t["data"], np.dtype(_NUMPY_NAMES[t["dtype"]])).reshape(t["shape"])
        for name, t in tensors
    }
    return header.get("__metadata__") or {}, arrays


def check_format(
    record: dict[str, Any] | None, wanted: str, version: str, source: Any
) -> dict[str, Any]:
    """Return the record if it is of the wanted format and version; else raise an error that says what it is."""
    name = repr(os.fspath(source)) if is_path(source) else "the file"
    found = None if record is None else record["format"]
    if record is None or found != wanted:
        what = (
            "a safetensors file that mge did not write"
            if found is None
            else f"a file of format {found!r}"
        )
        reader = "mge.load" if found is None else READERS.get(found, "")
        raise FileFormatError(
            f"{name}: it is {what}; {READERS[wanted]} reads {wanted!r}",
            hint=reader and f"{reader}(file)" or None,
        )
    if record.get("version") != version:
        raise FileFormatError(
            f"{name}: it has version {record.get('version')!r} of {wanted}; this mge reads version {version!r}",
            hint="pip install --upgrade mge-core",
        )
    return record


# Plain values in JSON, so that their types come back. A JSON object always has one key, which says what it is.


class NotPlain(Exception):
    """A value that JSON cannot hold: (value, path)."""

    def __init__(self, value: Any, path: str) -> None:
        super().__init__(value, path)
        self.value, self.path = value, path


Leaf = Callable[[Any, str], Any]  # (value, path) to a JSON value, or NotImplemented


def to_json(
    value: Any, path: str, leaf: Leaf = lambda value, path: NotImplemented, depth: int = DEPTH
) -> Any:
    """Return a JSON value for nested dicts, lists, tuples and plain values; ``leaf`` is asked about other things.

    Raises
    ------
    NotPlain
        A value that is none of these; it knows its path, as ``obj["model"][3]``.
    """
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if abs(value) < 1 << 63 else {"int": hex(value)}
    if kind is float:
        return value if np.isfinite(value) else {"float": repr(value)}
    if kind is complex:
        return {"complex": [to_json(value.real, path), to_json(value.imag, path)]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind is DType:
        return {"dtype": value.name}
    if isinstance(value, np.generic) and value.dtype.name in DTYPES:
        return {"numpy": [value.dtype.name, value.tobytes().hex()]}
    if not depth:
        raise ArgumentError(f"{path[:60]}...: containers are nested more than {DEPTH} deep")
    if kind in (list, tuple):
        items = [to_json(v, f"{path}[{i}]", leaf, depth - 1) for i, v in enumerate(value)]
        return items if kind is list else {"tuple": items}
    if isinstance(value, dict) and (
        kind is dict or kind.__module__ == "collections" and kind.__name__ != "Counter"
    ):
        pairs = []
        for key, v in value.items():
            shown = json.dumps(key, ensure_ascii=False) if type(key) is str else repr(key)
            place = f"{path}[{shown}]"
            pairs.append(
                [
                    to_json(key, f"key {shown} of {path}", depth=8),
                    to_json(v, place, leaf, depth - 1),
                ]
            )
        return {"dict": pairs}
    made = leaf(value, path)
    if made is NotImplemented:
        raise NotPlain(value, path)
    return made


def from_json(value: Any, leaf: Callable[[str, Any], Any], depth: int = DEPTH + 10) -> Any:
    """Return what ``to_json`` was given; ``leaf(key, inside)`` makes the things that its ``leaf`` wrote.

    Raises
    ------
    FileFormatError
        The JSON value is none that ``to_json`` writes.
    """
    if value is None or isinstance(value, (bool, str, int, float)):
        return value
    if not depth:
        raise FileFormatError(f"record: its values are nested more than {DEPTH} deep")
    if isinstance(value, list):
        return [from_json(v, leaf, depth - 1) for v in value]
    if len(value) != 1:
        raise FileFormatError(
            f"record: an object with keys {sorted(value)}; each has one key, which says what it is"
        )
    ((key, inside),) = value.items()
    try:
        if key == "tuple":
            return tuple([from_json(v, leaf, depth - 1) for v in inside])
        if key == "dict":
            return {from_json(k, leaf, 8): from_json(v, leaf, depth - 1) for k, v in inside}
        if key == "int" and re.fullmatch(r"-?0x[0-9a-f]+", inside):
            return int(inside, 16)
        if key == "float" and inside in ("nan", "inf", "-inf"):
            return float(inside)
        if key == "complex":
            return complex(*[from_json(v, leaf, 1) for v in inside])
        if key == "bytes":
            return bytes.fromhex(inside)
        if key == "dtype":
            return DTYPES[inside]
        if key == "numpy":
            name, data = inside
            (made,) = np.frombuffer(bytes.fromhex(data), DTYPES[name].dtype)
            return made
        return leaf(key, inside)
    except (TypeError, KeyError, IndexError, ValueError, AttributeError) as error:
        if isinstance(error, FileFormatError):
            raise
        shown = f"{{{key!r}: {str(inside)[:60]}}}"
        raise FileFormatError(f"record: {shown} is no value that mge writes ({error})") from None
