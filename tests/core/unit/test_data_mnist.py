"""IDX files: whole, packed, damaged."""

import gzip
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mge.data import DataLoader
from mge.data.dataset import MNIST
from mge.data.dataset.idx import read_idx
from mge.errors import FileFormatError

CODES = {"u1": 8, "i1": 9, "i2": 11, "i4": 12, "f4": 13, "f8": 14}


def idx(array):
    code = CODES[array.dtype.str[1:]]
    header = bytes([0, 0, code, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


def write(folder, part="train", images=None, labels=None, pack=gzip.compress, end=".gz"):
    images = np.arange(24, dtype=np.uint8).reshape(2, 3, 4) if images is None else images
    labels = np.array([7, 9], np.uint8) if labels is None else labels
    (folder / f"{part}-images-idx3-ubyte{end}").write_bytes(pack(idx(images)))
    (folder / f"{part}-labels-idx1-ubyte{end}").write_bytes(pack(idx(labels)))


@pytest.mark.parametrize("end", ["", ".gz"])
def test_mnist_reads_packed_and_raw_files(tmp_path, end):
    write(tmp_path, pack=gzip.compress if end else bytes, end=end)
    dataset = MNIST(tmp_path)
    image, label = dataset[1]
    assert len(dataset) == 2 and dataset.order == ("image", "image_category")
    assert image.shape == (3, 4, 1) and image.dtype == np.uint8 and image[0, 0, 0] == 12
    assert label == 9 and label.dtype == np.int32
    images, labels = next(iter(DataLoader(dataset)))
    assert images.shape == (1, 3, 4, 1) and labels.dtype == np.int32


def test_mnist_reads_the_test_part(tmp_path):
    write(tmp_path, "t10k")
    assert len(MNIST(str(tmp_path), train=False)) == 2
    with pytest.raises(FileNotFoundError, match="no train-images-idx3-ubyte in"):
        MNIST(tmp_path)


def test_mnist_refuses_other_contents(tmp_path):
    write(tmp_path, labels=np.zeros(3, np.uint8))
    with pytest.raises(FileFormatError, match="2 images and 3 labels"):
        MNIST(tmp_path)
    write(tmp_path, images=np.zeros((2, 3), np.uint8))
    with pytest.raises(FileFormatError, match=r"holds uint8 of shape \(2, 3\).*with 3 axes"):
        MNIST(tmp_path)
    write(tmp_path, labels=np.zeros(2, np.int32))
    with pytest.raises(FileFormatError, match=r"holds int32.*must hold uint8"):
        MNIST(tmp_path)


@pytest.mark.parametrize("code", CODES)
def test_read_idx_reads_each_dtype(tmp_path, code):
    array = np.array([[1, 2, 3], [4, 5, 100]], code)
    path = tmp_path / "file"
    path.write_bytes(idx(array))
    found = read_idx(path)
    assert found.dtype == array.dtype and found.dtype.isnative and np.array_equal(found, array)
    found[0] = 0  # owned, and not read-only


GOOD = idx(np.arange(24, dtype=np.uint8).reshape(2, 3, 4))


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"", "starts with nothing"),
        (b"\x00\x00\x08", "starts with 00 00 08"),
        (b"\x01" + GOOD[1:], "an IDX file starts with 00 00"),
        (GOOD[:2] + b"\x0a" + GOOD[3:], "a type of 08, 09"),
        (GOOD[:9], "ends inside its header; 3 axes need 16 bytes"),
        (GOOD[:-1], "needs 24 bytes after the header, and there are 23"),
        (GOOD + b"\0", "and there are more than 24"),
        (GOOD[:4] + b"\xff" * 12 + GOOD[16:], "the file cannot hold them"),
    ],
)
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_read_idx_names_the_fault(tmp_path, content, text, pack):
    path = tmp_path / "faulty"
    path.write_bytes(pack(content))
    if pack is bytes and text.endswith(("23", "more than 24")):
        text = text.removeprefix("needs 24 bytes after the header, ")
    with pytest.raises(FileFormatError, match="faulty") as caught:
        read_idx(path)
    known = text in str(caught.value) or "cannot hold them" in str(caught.value)
    assert known


@pytest.mark.parametrize("cut", [3, 15, -9, -1])
def test_read_idx_refuses_cut_gzip_data(tmp_path, cut):
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(GOOD)[:cut])
    with pytest.raises(FileFormatError, match=r"cut\.gz.*damaged gzip data"):
        read_idx(path)


@given(st.integers(0, len(GOOD) + 20), st.integers(1, 255))
def test_read_idx_survives_any_changed_byte(tmp_path_factory, place, change):
    data = bytearray(gzip.compress(GOOD, mtime=0))
    data[place % len(data)] ^= change
    path = tmp_path_factory.mktemp("idx") / "changed"
    path.write_bytes(data)
    try:
        found = read_idx(path)
    except FileFormatError:
        return
    assert (
        found.tobytes() == GOOD[16:]
    )  # the change was in a part of gzip's header that says nothing
