"""Damaged, hostile and foreign files: an error of ours, and nothing of them is used."""

import io
import json
import os

import numpy as np
import pytest
import safetensors.numpy

import mge.functional as F
from mge import archive
from mge.errors import FileFormatError, MgeError
from mge.jit import trace
from mge.modelfile import load_model
from mge.tensor import tensor


def bits(x):
    return np.asarray(x.numpy()).tobytes()


@pytest.fixture
def content():
    weight = tensor([[1.0, 2.0], [3.0, 4.0]])
    seen = tensor([0.0])

    @trace
    def function(x, pair):
        seen.set_value(F.sum(x).reshape(1))
        return {"y": F.matmul(x, weight) + pair[1], "z": (pair[0], 3)}

    function(tensor([[1.0, 2.0]]), (tensor([1.0]), tensor([2.0])))
    file = io.BytesIO()
    function.dump(file, user_info={"a": [1, (2.5, "x")]}, dynamic_batch=["x"])
    return file.getvalue()


def refused(data):
    """Check that bytes are refused by an error of ours; return whether they were."""
    try:
        model = load_model(io.BytesIO(data))
    except FileFormatError:
        return True
    return model


def test_a_file_cut_anywhere_is_refused(content):
    for end in range(len(content)):
        assert refused(content[:end]) is True
    assert refused(content + b"\0") is True


def test_a_flipped_byte_anywhere_is_refused_or_changes_nothing(content, rng):
    original = load_model(io.BytesIO(content))
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= int(rng.integers(1, 256))
        model = refused(bytes(damaged))
        if model is not True:  # a space, or another spelling of the same JSON
            assert str(model.graph) == str(original.graph)
            assert [bits(w) for w in model.weights.values()] == [
                bits(w) for w in original.weights.values()
            ]


def test_a_header_that_claims_too_much(content):
    size = int.from_bytes(content[:8], "little")
    for claim in (size + 10**6, 2**63 - 1, 2**64 - 1, 0, 1):
        assert refused(claim.to_bytes(8, "little") + content[8:]) is True
    header = content[8 : 8 + size]
    for old, new in (
        (b"[0,4]", b"[0,9]"),
        (b"[4,20]", b"[0,16]"),
        (b"[4,20]", b"[8,24]"),
        (b"[2,2]", b"[2,9]"),
    ):
        assert old in header
        assert refused(content[:8] + header.replace(old, new) + content[8 + size :]) is True


def rewritten(content, change):
    """Return the file with its record changed, and a checksum that is right again."""
    found = archive.read_archive(io.BytesIO(content))
    file = io.BytesIO()
    record, arrays = found.record, dict(found.arrays)
    change(record, arrays)
    archive.write_archive(file, record, arrays)
    return file.getvalue()


def change_of(*keys, value):
    def change(record, arrays):
        for key in keys[:-1]:
            record = record[key]
        record[keys[-1]] = value

    return change


def text(old, new):
    def change(record, arrays):
        assert old in record["graph"]
        record["graph"] = record["graph"].replace(old, new)

    return change


HOSTILE = [
    (change_of("version", value="2"), "it has version '2' of mge.model; this mge reads version '1'"),
    (change_of("version", value=None), "has version None"),
    (change_of("format", value="mge.data"), r"format 'mge.data'; mge.load_model reads 'mge.model'\n.*mge.load\(file\)"),
    (change_of("format", value="other"), "it is a file of format 'other'"),
    (text("matmul", "evil"), r"graph text, line \d, column \d+: found the op 'evil'"),
    (text("matmul", "vision::nms"), "pip install mge-vision"),
    (text("return", "returns"), "graph text, line"),
    (text("f32[2, 2] slow", "f32[2, 3] slow"), "the rule of matmul|gives"),
    (change_of("graph", value=3), "'graph' must be a str"),
    (change_of("graph", value="graph() { return }"), "takes 0 inputs"),
    (change_of("weights", 0, "name", value="other"), "the weights named are not those in the file"),
    (change_of("weights", 0, "kind", value="code"), "each weight must have a name and a kind"),
    (change_of("weights", 0, "kind", value=[]), "do not fit together"),
    (change_of("weights", 0, value=7), "each weight must have a name and a kind"),
    (change_of("effects", value=[[0, 99]]), "names no weight and output"),
    (change_of("effects", 0, value=[0, 2]), "another type"),
    (change_of("effects", value=[]), "outputs"),
    (change_of("rebinds", value=[[0]]), "outputs"),
    (lambda record, arrays: record.update(effects=[], rebinds=[[9, 2]]), "names no input and output"),
    (change_of("inputs", value=["a", "a", "b"]), "different names"),
    (change_of("inputs", value=["a", "b"]), "weight 'weight' is f32"),
    (change_of("parameters", value=[]), "each must be there once"),
    (change_of("parameters", 0, "tree", value={"input": -1}), "each must be there once"),
    (change_of("parameters", 0, "tree", value={"input": "0"}), "'input'"),
    (change_of("parameters", 0, "tree", value={"dict": 7}), "no value that mge writes"),
    (change_of("parameters", 0, value={"name": "x"}), "a parameter has name, positional and tree"),
    (change_of("results", value={"output": 0}), "the results hold outputs"),
    (change_of("results", value={"python": "import os"}), "'python', which has no place there"),
    (change_of("batch", value={}), "lacks a reason"),
    (change_of("batch", "size", value=True), "the batch size is True"),
    (change_of("batch", "size", value=None), "the inputs of the batch"),
    (change_of("batch", "size", value=2**50), "the batch size is"),
    (change_of("batch", "inputs", value=[99]), "the inputs of the batch are"),
    (change_of("user_info", value={"int": "1e9"}), "no place there|no value"),
    (change_of("user_info", value={"numpy": ["float32", "zz"]}), "no value that mge writes"),
    (change_of("user_info", value={"dict": [[[1], 2]]}), "no value that mge writes"),
    (change_of("user_info", value={"a": 1, "b": 2}), "each has one key"),
    (lambda record, arrays: record.pop("results"), "'results' and 'user_info' must be there"),
    (lambda record, arrays: arrays.update(extra=np.zeros(3)), "are not those in the file"),
    (lambda record, arrays: arrays.update(weight=np.zeros((2, 2), np.int32)), "weight 'weight' is i32"),
    (lambda record, arrays: arrays.update(weight=np.zeros((3, 2), np.float32)), "weight 'weight' is f32"),
    (lambda record, arrays: arrays.update(weight=np.zeros((2, 2), np.complex64)), "dtype complex64"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), HOSTILE)
def test_a_forged_file_is_refused(content, change, message):
    with pytest.raises(FileFormatError, match=f"(?s){message}"):
        load_model(io.BytesIO(rewritten(content, change)))


def test_deep_records_are_refused(content):
    deep = json.loads("[" * 500 + "]" * 500)
    with pytest.raises(FileFormatError, match="nested more than"):
        load_model(io.BytesIO(rewritten(content, change_of("user_info", value=deep))))
    header = b'{"__metadata__":{"mge":"' + b"[" * 200_000 + b'"}}'
    assert refused(len(header).to_bytes(8, "little") + header) is True


def test_any_change_of_a_value_in_the_record_is_an_error_of_ours_or_loads(content, rng):
    """Each value of the record becomes something else; nothing but our errors comes out."""
    values = [None, True, -1, 10**30, "", "x", [], {}, {"tuple": [1]}, {"input": 0}, 0.5]
    record = archive.read_archive(io.BytesIO(content)).record

    def paths(value, path=()):
        if path:
            yield path
        for key, v in (
            value.items()
            if isinstance(value, dict)
            else enumerate(value)
            if isinstance(value, list)
            else ()
        ):
            yield from paths(v, (*path, key))

    for path in paths(record):
        for value in values:
            refused(rewritten(content, change_of(*path, value=value)))


def test_foreign_files(tmp_path):
    for data in (b"", b"\x80\x04K\x03.", b"PK\x03\x04" * 20, os.urandom(500), b"{" * 50):
        path = tmp_path / "file"
        path.write_bytes(data)
        with pytest.raises(FileFormatError, match="no complete safetensors file"):
            load_model(path)
    safetensors.numpy.save_file({"a": np.zeros(3)}, path)
    with pytest.raises(FileFormatError, match="a safetensors file that mge did not write"):
        load_model(path)
    with pytest.raises(FileNotFoundError):
        load_model(tmp_path / "none")


def test_the_error_names_the_file_and_the_users_line(tmp_path):
    path = tmp_path / "file.mge"
    path.write_bytes(b"abc")
    with pytest.raises(MgeError) as error:
        load_model(path)
    assert "file.mge" in str(error.value)
    assert __file__ in str(error.value)
