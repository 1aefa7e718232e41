"""Checkpoints: types come back as they were, no code runs, damage is found, and errors say where."""

import collections
import enum
import io
import math
import os
import pickle
import stat

import numpy as np
import pytest
import safetensors.numpy

import mge
import mge.module as M
from mge import archive
from mge.dtype import DTYPES
from mge.errors import ArgumentError, DeviceError, FileFormatError, PluginError
from mge.optimizer import Adam
from mge.serialization import load, save
from mge.tensor import ModuleBuffer, Parameter, Tensor, tensor


def again(obj, **options):
    file = io.BytesIO()
    save(obj, file)
    file.seek(0)
    return load(file, **options)


PLAIN = [
    None, True, False, 0, -1, 2**63 - 1, 2**63, -(10**5000), 0.0, 0.1, 1e300, 5e-324, math.inf,
    -math.inf, 1 + 2j, complex(math.inf, -0.5), "", "x", "é\n\"'\\\x00😀", b"", b"\x00\xff",
    DTYPES["bfloat16"], np.float32(0.1), np.int64(-5), np.bool_(True), [], (), {}, [[]], ((),),
    [1, (2, [3])], {"a": {"b": ()}}, {1: "int", "1": "str", 1.5: "float", None: 0},
    {(1, "a"): 1, True: 2, b"k": 3}, {"tuple": [1], "dict": 2}, {"tensor": 3},
]  # fmt: skip


def same(one, other):
    """Whether two trees are equal, with all their types."""
    assert type(one) is type(other), (one, other)
    if isinstance(one, dict):
        assert [*map(repr, one)] == [*map(repr, other)]
        return all(same(a, b) for a, b in zip(one.values(), other.values()))
    if isinstance(one, (list, tuple)):
        assert len(one) == len(other)
        return all(same(a, b) for a, b in zip(one, other))
    if isinstance(one, (np.ndarray, Tensor)):
        left, right = np.asarray(one), np.asarray(other)
        return (
            left.dtype == right.dtype
            and left.shape == right.shape
            and left.tobytes() == right.tobytes()
        )
    return one == other


@pytest.mark.parametrize(
    "value", PLAIN, ids=lambda v: repr(v)[:30] if not isinstance(v, int) else f"{v % 1000}"
)
def test_plain_values_come_back(value):
    assert same(again(value), value)
    assert same(again({"k": [value]}), {"k": [value]})


def test_nan_and_the_sign_of_zero_come_back():
    made = again([math.nan, -0.0, np.float16("nan")])
    assert math.isnan(made[0]) and math.copysign(1, made[1]) == -1 and math.isnan(made[2])


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 3)])
def test_arrays_and_tensors_of_each_dtype(name, shape, rng):
    array = np.asarray(rng.integers(0, 2, shape)).astype(DTYPES[name].dtype)
    value = {"a": array, "t": tensor(array, dtype=name), "p": Parameter(array, dtype=name)}
    value["b"] = ModuleBuffer(array, dtype=name)
    made = again(value)
    assert same(made, value)
    assert made["a"].flags.writeable


@pytest.mark.parametrize(
    "dtype", ["c8", "c16", ">f4", ">i8", "U5", "S3", "M8[ns]", "m8[D]", "<f8", ">c16", "M8[25s]"]
)
def test_other_arrays(dtype):
    array = np.zeros((2, 3), dtype)
    array[1] = np.ones(3).astype(dtype)
    made = again([array])[0]
    assert made.dtype == array.dtype and (made == array).all() and made.shape == (2, 3)


def test_order_and_kind_of_memory_do_not_matter():
    array = np.arange(12.0).reshape(3, 4)
    value = [array.T, array[::2], np.broadcast_to(array[0], (2, 4)), array[:, ::-1]]
    assert same(again(value), value)


def test_what_is_there_twice_is_one_object_again():
    weight, array = Parameter([1.0], name="weight"), np.zeros(3)
    file = io.BytesIO()
    save({"a": weight, "b": [weight, array], "c": array}, file)
    assert file.tell() < 700
    file.seek(0)
    made = load(file)
    assert made["a"] is made["b"][0] and made["b"][1] is made["c"]
    assert made["a"].name == "weight"


def test_dicts_of_other_classes_come_back_as_dicts():
    value = collections.OrderedDict(b=1, a=2)
    assert same(again(value), {"b": 1, "a": 2})
    assert same(again(collections.defaultdict(list, a=[1])), {"a": [1]})


def test_training_goes_on_from_a_checkpoint(tmp_path, rng):
    from mge.autodiff import GradManager

    def made():
        net = M.Sequential(M.Linear(3, 4), M.BatchNorm1d(4), M.Linear(4, 1))
        return net, Adam(net.parameters(), lr=0.01)

    def train(net, opt, steps):
        gm = GradManager().attach(net.parameters())
        for _ in range(steps):
            with gm:
                loss = (net(x) ** 2).mean()
                gm.backward(loss)
            opt.step().clear_grad()
        return loss.item()

    x = tensor(rng.normal(size=(5, 3)))
    net, opt = made()
    train(net, opt, 3)
    save({"net": net.state_dict(), "opt": opt.state_dict(), "step": 3}, tmp_path / "c")
    other, other_opt = made()
    found = load(tmp_path / "c")
    other.load_state_dict(found["net"])
    other_opt.load_state_dict(found["opt"])
    assert train(net, opt, 3) == train(other, other_opt, 3)


def test_values_that_are_pending_are_computed():
    x = tensor([1.0, 2.0])
    assert again([x + 1, x * 2])[1].tolist() == [2.0, 4.0]


def test_equal_objects_give_equal_bytes_on_paths_and_files(tmp_path):
    value = {"z": np.arange(3), "a": [tensor([1.0]), {"k": 2.5}]}
    save(value, tmp_path / "a")
    with open(tmp_path / "b", "wb") as file:
        save(value, file)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    with open(tmp_path / "b", "rb") as file:
        assert same(load(file), load(str(tmp_path / "a")))


def test_other_tools_read_the_arrays(tmp_path):
    save({"net": {"fc.weight": tensor([1.0, 2.0])}, "list": [np.zeros(2)]}, tmp_path / "a")
    found = safetensors.numpy.load_file(tmp_path / "a")
    assert sorted(found) == ["list/0", "net/fc.weight"]
    assert found["net/fc.weight"].tolist() == [1.0, 2.0]


def test_files_of_other_tools_are_read(tmp_path):
    safetensors.numpy.save_file({"w": np.arange(3.0)}, tmp_path / "a", metadata={"format": "pt"})
    assert load(tmp_path / "a")["w"].tolist() == [0.0, 1.0, 2.0]


# What is refused.


class Colour(enum.IntEnum):
    RED = 1


Point = collections.namedtuple("Point", "x")


@pytest.mark.parametrize(
    ("obj", "message"),
    [
        ({"model": [0, 1, 2, object()]}, r'obj\["model"\]\[3\] is a builtins.object'),
        ({"a": {"b": (1, {2})}}, r'obj\["a"\]\["b"\]\[1\] is a builtins.set'),
        (lambda: 0, "obj is a builtins.function"),
        ([Colour.RED], r"obj\[0\] is a test_serialization.Colour|Colour"),
        ([Point(1)], r"obj\[0\] is a .*Point"),
        ({"n": np.array([None])}, r'obj\["n"\] \(an array of object\)'),
        ({"n": np.zeros(2, [("a", "i4")])}, r'obj\["n"\] \(an array of \[\('),
        ({"m": M.Linear(1, 1)}, r'obj\["m"\] is a mge.module.linear.Linear'),
        ({frozenset(): 1}, r"key frozenset\(\) of obj is a builtins.frozenset"),
        (np.ma.zeros(3), "obj is a numpy.ma"),
    ],
)
def test_other_objects_are_errors_with_their_place(obj, message, tmp_path):
    with pytest.raises(ArgumentError, match=message) as error:
        save(obj, tmp_path / "a")
    assert "pickle_module=pickle" in str(error.value) and __file__ in str(error.value)
    assert not list(tmp_path.iterdir())


def test_a_container_in_itself_is_an_error():
    loop = []
    loop.append(loop)
    with pytest.raises(ArgumentError, match="nested more than 100 deep"):
        again(loop)
    deep = []
    for _ in range(archive.DEPTH - 1):
        deep = [deep]
    assert same(again(deep), deep)


class Bomb:
    def __reduce__(self):
        return os.mkdir, ("exploded",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_pickle_is_not_read_unless_asked_for(tmp_path, monkeypatch, protocol):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "a.pkl"
    path.write_bytes(pickle.dumps([Bomb()], protocol))
    with pytest.raises(
        FileFormatError, match=r"pickle, and reading it would run code|no file that mge.save wrote"
    ):
        load(path)
    assert not (tmp_path / "exploded").exists()
    load(path, allow_pickle=True)
    assert (tmp_path / "exploded").exists()


def test_pickles_where_they_are_asked_for(tmp_path):
    value = {"w": Parameter([1.0], name="w"), "f": Colour.RED}
    save(value, tmp_path / "a", pickle_module=pickle, pickle_protocol=2)
    with open(tmp_path / "b", "wb") as file:
        save(value, file, pickle_module=pickle)
    for name in "ab":
        made = load(tmp_path / name, map_location="ref:0", allow_pickle=True)
        assert made["f"] is Colour.RED and made["w"].name == "w" and type(made["w"]) is Parameter
    with open(tmp_path / "b", "rb") as file:
        assert load(file, allow_pickle=True, pickle_module=pickle)["w"].tolist() == [1.0]


def test_other_files(tmp_path):
    path = tmp_path / "a"
    for data in (b"", b"hello", bytes(100), os.urandom(200)):
        path.write_bytes(data)
        with pytest.raises(FileFormatError):
            load(path)
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none")
    with pytest.raises(ArgumentError, match="open for reading bytes"):
        load(io.StringIO("text"))


CONTENT = {"w": tensor([1.0, 2.0], name="w"), "l": [1, (2.5, None)], 3: np.zeros((2, 2), ">i2")}


@pytest.fixture
def content():
    file = io.BytesIO()
    save(CONTENT, file)
    return file.getvalue()


def test_a_file_cut_anywhere_is_refused(content):
    for end in range(len(content)):
        with pytest.raises(FileFormatError):
            load(io.BytesIO(content[:end]))


def test_a_flipped_byte_anywhere_is_refused_or_changes_nothing(content, rng):
    for position in range(len(content)):
        damaged = bytearray(content)
        damaged[position] ^= int(rng.integers(1, 256))
        try:
            made = load(io.BytesIO(bytes(damaged)))
        except FileFormatError:
            continue
        if "w" in made and isinstance(made["w"], Tensor):
            assert same(made, load(io.BytesIO(content)))
        else:  # the key of the record was hit: a file of another tool
            assert all(isinstance(a, np.ndarray) for a in made.values())


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({"tensor": ["w", "Tensor", "ref:0", None], "x": 1}, "each has one key"),
        ({"tensor": ["none", "Tensor", "ref:0", None]}, "the array 'none' is not in the file"),
        ({"tensor": ["w", "Module", "ref:0", None]}, "no value that mge writes"),
        ({"tensor": ["w", "Tensor", "ref:0", 7]}, "is no tensor of mge"),
        ({"tensor": ["w"]}, "no value that mge writes"),
        ({"tensor": []}, "IndexError|no value that mge writes|list index"),
        ({"array": ["w", "O", [1]]}, "has the dtype 'O'"),
        ({"array": ["w", "V8", [1]]}, "has the dtype 'V8'"),
        ({"array": ["w", "<f8", [1]]}, "has the dtype '<f8'"),
        ({"array": ["b", "<f8", [7]]}, "no value that mge writes"),
        ({"array": ["b", "<f8", [-1, -1]]}, "no value that mge writes"),
        ({"array": ["b", "<f8", "x"]}, "no value that mge writes"),
        ({"python": "os.system"}, "no value|nothing that a checkpoint holds|not in the file"),
        ({"dtype": "float1"}, "no value that mge writes"),
        ({"bytes": "zz"}, "no value that mge writes"),
        ([1, 2], "the array 'b' of the file has no place"),
    ],
)
def test_a_forged_file_is_refused(tree, message):
    file = io.BytesIO()
    record = {"format": "mge.data", "version": "1", "tree": tree}
    archive.write_archive(file, record, {"w": np.zeros(1, np.float32), "b": np.zeros(8, np.uint8)})
    file.seek(0)
    with pytest.raises(FileFormatError, match=message):
        load(file)


def test_a_model_is_no_checkpoint():
    file = io.BytesIO()
    archive.write_archive(file, {"format": "mge.model", "version": "1"}, {})
    file.seek(0)
    with pytest.raises(
        FileFormatError, match=r"mge.load reads 'mge.data'\n(.*\n)?.*mge.load_model"
    ):
        load(file)


# Where tensors go, and how files are written.


def test_map_location():
    class Elsewhere(mge.device.Device):
        pass

    value = {"t": tensor([1.0])}
    for where in ("ref:0", "ref", {"ref:0": "ref:0"}, {"cuda:0": "ref:0"}, lambda name: name, None):
        assert again(value, map_location=where)["t"].device == "ref:0"
    with pytest.raises(PluginError, match="nodevice"):
        again(value, map_location="nodevice:0")
    file = io.BytesIO()
    record = {
        "format": "mge.data",
        "version": "1",
        "tree": {"tensor": ["w", "Tensor", "cuda:3", None]},
    }
    archive.write_archive(file, record, {"w": np.zeros(1, np.float32)})
    with pytest.raises(
        DeviceError, match=r"a tensor was on cuda:3, which is not here(?s:.*)map_location"
    ):
        load(io.BytesIO(file.getvalue()))
    for where in ("ref:0", {"cuda:3": "ref:0"}, lambda name: name.replace("cuda:3", "ref:0")):
        assert load(io.BytesIO(file.getvalue()), map_location=where).device == "ref:0"


def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    save([1], path)
    old = path.read_bytes()

    def fail(*_, **__):
        raise OSError("the disk is full")

    monkeypatch.setattr(archive.safetensors, "serialize_file", fail)
    with pytest.raises(OSError, match="the disk is full"):
        save([2], path)
    with pytest.raises(TypeError):
        save(
            [lambda: 0],
            path,
            pickle_module=type("broken", (), {"dump": staticmethod(lambda *_: 1 + "")}),
        )
    assert path.read_bytes() == old
    assert [p.name for p in tmp_path.iterdir()] == ["a"]


def test_files_have_the_usual_rights_and_links_stay(tmp_path):
    plain, path, link = tmp_path / "plain", tmp_path / "a", tmp_path / "link"
    plain.write_bytes(b"")
    link.symlink_to(path)
    save([1], link)
    assert link.is_symlink() and load(path) == [1]
    assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(plain.stat().st_mode)
