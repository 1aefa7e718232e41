"""Read a file in the IDX format, packed with gzip or not.

In: a path. Out: an array, or an error that names the file and the fault.
Before ``mnist``.
"""

from __future__ import annotations

import gzip
import math
import os
import struct
import zlib
from pathlib import Path
from typing import IO

import numpy as np

from mge.errors import FileFormatError

# Third byte of the magic number, from "The IDX file format" at the end of
# http://yann.lecun.com/exdb/mnist/. Values are stored with the high byte first.
_DTYPES = {8: ">u1", 9: ">i1", 11: ">i2", 12: ">i4", 13: ">f4", 14: ">f8"}
# DEFLATE packs at most 1032 bytes into one (zlib technical details); a header that claims more is false.
_MOST_PACKED = 1032
_CHUNK = 1 << 20


def read_idx(path: str | os.PathLike[str]) -> np.ndarray:
    """Read an array from an IDX file.

    Parameters
    ----------
    path : str or path
        The file; whether it is packed with gzip is seen from its first two bytes.

    Returns
    -------
    numpy.ndarray
        Shape and dtype as the file says, in the machine's byte order, owned by the caller.

    Raises
    ------
    FileNotFoundError
        There is no such file.
    FileFormatError
        The magic number, the dimensions or the length are wrong, or the gzip data is damaged.
    """
    path = Path(path)
    size = path.stat().st_size
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    try:
        if packed:
            with gzip.open(path, "rb") as unpacked:
                return _parse(unpacked, path, size * _MOST_PACKED)  # type: ignore[arg-type]
        with path.open("rb") as file:
            return _parse(file, path, size)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise FileFormatError(
            f"read_idx: {path} ({size} bytes) is damaged gzip data: {error}",
            hint="copy or download the file again",
        ) from None


def _parse(file: IO[bytes], path: Path, most: int) -> np.ndarray:
    magic = _read(file, 4)
    if len(magic) < 4 or magic[:2] != b"\0\0" or magic[2] not in _DTYPES:
        raise FileFormatError(
            f"read_idx: {path} starts with {magic.hex(' ') or 'nothing'}; an IDX file starts with "
            f"00 00, a type of {', '.join(f'{t:02x}' for t in _DTYPES)}, and the number of axes"
        )
    ndim = magic[3]
    header = _read(file, 4 * ndim)
    if len(header) < 4 * ndim:
        raise FileFormatError(
            f"read_idx: {path} ends inside its header; {ndim} axes need {4 + 4 * ndim} bytes"
        )
    shape = struct.unpack(f">{ndim}I", header)
    dtype = np.dtype(_DTYPES[magic[2]])
    nbytes = math.prod(shape) * dtype.itemsize
    rule = f"shape {shape} of {dtype.name} needs {nbytes} bytes after the header"
    if nbytes > most:
        raise FileFormatError(f"read_idx: {path}: {rule}, and the file cannot hold them")
    data = _read(file, nbytes + 1)  # one more: to see that nothing follows, and gzip's checksum
    if len(data) != nbytes:
        there = f"more than {nbytes}" if len(data) > nbytes else str(len(data))
        raise FileFormatError(f"read_idx: {path}: {rule}, and there are {there}")
    return np.frombuffer(data, dtype).reshape(shape).astype(dtype.newbyteorder("="))


def _read(file: IO[bytes], count: int) -> bytes:
    """Read up to ``count`` bytes, in pieces: a false count does not reserve memory."""
    pieces = []
    while count > 0 and (piece := file.read(min(count, _CHUNK))):
        pieces.append(piece)
        count -= len(piece)
    return b"".join(pieces)
