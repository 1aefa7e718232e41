"""Transforms: what they do to images, and to boxes, masks and points in step."""

import pickle
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mge.data.transform as T
from mge.data.seeding import seeded
from mge.data.transform.color import turn_hue
from mge.errors import ArgumentError, DTypeError, ShapeError

ALL = ("image", "boxes", "mask", "coords", "keypoints", "polygons", "image_category", "info")
# One of each, with arguments that work for a 12 x 16 image.
EVERY = {
    "compose": lambda order: T.Compose([T.RandomHorizontalFlip(), T.RandomCrop(8)], order=order),
    "to_mode": lambda order: T.ToMode(order=order),
    "normalize": lambda order: T.Normalize([1, 2, 3], [4, 5, 6], order=order),
    "resize": lambda order: T.Resize((6, 9), order=order),
    "shortest_edge": lambda order: T.ShortestEdgeResize((6, 9), 14, order=order),
    "random_resize": lambda order: T.RandomResize((0.5, 2.0), order=order),
    "center_crop": lambda order: T.CenterCrop(8, order=order),
    "random_crop": lambda order: T.RandomCrop(14, padding_size=1, order=order),
    "random_resized_crop": lambda order: T.RandomResizedCrop(8, order=order),
    "horizontal": lambda order: T.RandomHorizontalFlip(order=order),
    "vertical": lambda order: T.RandomVerticalFlip(order=order),
    "pad": lambda order: T.Pad((1, 2, 3, 4), order=order),
    "jitter": lambda order: T.ColorJitter(0.4, 0.4, 0.4, 0.2, order=order),
    "brightness": lambda order: T.BrightnessTransform(0.4, order=order),
    "contrast": lambda order: T.ContrastTransform(0.4, order=order),
    "saturation": lambda order: T.SaturationTransform(0.4, order=order),
    "hue": lambda order: T.HueTransform(0.3, order=order),
    "lighting": lambda order: T.Lighting(0.1, order=order),
    "noise": lambda order: T.GaussianNoise(0.0, 0.1, order=order),
    "pseudo": lambda order: T.PseudoTransform(),
}


def sample(rng, dtype=np.uint8):
    image = rng.integers(0, 256, (12, 16, 3)).astype(dtype)
    keypoints = np.concatenate([rng.uniform(0, 12, (2, 4, 2)), np.ones((2, 4, 1))], axis=2)
    return (
        image,
        np.array([[1, 2, 5, 9], [0, 0, 16, 12]]),
        image[:, :, :1] // 64,
        rng.uniform(0, 12, (5, 2)).astype(np.float32),
        keypoints,
        [[rng.uniform(0, 12, (4, 2))], [rng.uniform(0, 12, (3, 2)), np.zeros((0, 2))]],
        7,
        {"path": "a.png"},
    )


def plain(value):
    """A form that compares: arrays become lists."""
    if isinstance(value, (list, tuple)):
        return [plain(v) for v in value]
    return value.tolist() if isinstance(value, (np.ndarray, np.generic)) else value


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", ["uint8", "float32"])
def test_every_transform_keeps_to_the_rules(name, dtype, rng):
    made = EVERY[name](ALL)
    given_sample = sample(rng, dtype)
    before = plain(given_sample)
    for array in given_sample[:5]:
        array.flags.writeable = False

    def run(transform):
        with seeded((1,), (2,)):
            return transform.apply(given_sample)

    result = run(made)
    assert plain(given_sample) == before, "the arguments have changed"
    assert plain(run(made)) == plain(result), "the same generator gives another result"
    assert plain(run(pickle.loads(pickle.dumps(made)))) == plain(result)
    image, boxes, mask, coords, keypoints, polygons, category, info = result
    assert image.dtype == ("float32" if name == "normalize" else dtype)
    assert (
        image.shape[-2:] == mask.shape[-2:]
        if name == "to_mode"
        else image.shape[:2] == mask.shape[:2]
    )
    assert boxes.shape == (2, 4) and (boxes[:, 2:] >= boxes[:, :2]).all()
    assert (
        coords.shape == (5, 2) and keypoints.shape == (2, 4, 3) and (keypoints[..., 2] == 1).all()
    )
    assert [[p.shape for p in instance] for instance in polygons] == [[(4, 2)], [(3, 2), (0, 2)]]
    assert category == 7 and info == {"path": "a.png"}
    assert set(np.unique(mask)) <= {0, 1, 2, 3}


MOVING = [
    "compose", "resize", "shortest_edge", "random_resize", "center_crop", "random_crop",
    "random_resized_crop", "horizontal", "vertical", "pad",
]  # fmt: skip


@pytest.mark.parametrize("name", MOVING)
@given(seed=st.integers(0, 10**6), x=st.integers(0, 3), y=st.integers(0, 2))
def test_points_move_with_the_image(name, seed, x, y):
    # A bright cell of 4 x 4 pixels; its box has to contain what is bright afterwards.
    image = np.zeros((12, 16, 1), np.float32)
    image[4 * y : 4 * y + 4, 4 * x : 4 * x + 4] = 255
    box = np.array([[4.0 * x, 4.0 * y, 4 * x + 4, 4 * y + 4]])
    order = ("image", "boxes", "mask")
    with seeded((seed,), ()):
        moved, boxes, mask = EVERY[name](order).apply((image, box, image))
    h, w = moved.shape[:2]
    x0, y0, x1, y1 = boxes[0]
    rows, columns = np.arange(h) + 0.5, np.arange(w) + 0.5
    inside = ((rows > y0) & (rows < y1))[:, None] & ((columns > x0) & (columns < x1))
    margin = ((rows > y0 - 1) & (rows < y1 + 1))[:, None] & (
        (columns > x0 - 1) & (columns < x1 + 1)
    )
    assert (moved[~margin] == 0).all() and (mask[~margin] == 0).all()
    if name in ("center_crop", "random_crop", "horizontal", "vertical", "pad", "compose"):
        assert (moved[inside] == 255).all() and (mask[inside] == 255).all()


def test_a_sample_that_is_no_tuple_is_an_image():
    image = np.zeros((4, 6, 3), np.uint8)
    assert T.Resize(2).apply(image).shape == (2, 3, 3)
    assert T.Resize(2).apply((image,)).shape == (2, 3, 3)
    assert T.Resize(2).apply((image, "rest"))[1] == "rest"
    batch = T.Resize(2).apply_batch([(image, 1), (image, 2)])
    assert [label for _, label in batch] == [1, 2]


def test_order_is_checked():
    with pytest.raises(DTypeError, match=r"Resize: order is 'image'; it must be a sequence"):
        T.Resize(2, order="image")
    with pytest.raises(NotImplementedError, match=r"order has 'depth'(.|\n)*define _apply_depth"):
        T.Resize(2, order=("image", "depth"))
    with pytest.raises(ArgumentError, match="this transform needs an image"):
        T.Resize(2, order=("boxes",)).apply(np.zeros((1, 4)))
    with pytest.raises(
        ShapeError, match=r"image has shape \(4, 4\); it must be \(h, w, c\)(.|\n)*None"
    ):
        T.Resize(2).apply(np.zeros((4, 4)))
    with pytest.raises(DTypeError, match="the image is a list"):
        T.Normalize().apply([[1]])


def test_own_transforms_as_in_megengine():
    class Shift(T.VisionTransform):
        def apply(self, input):
            self._by = 1
            return super().apply(input)

        def _apply_image(self, image):
            return image + self._by

        def _apply_depth(self, depth):
            return depth - self._by

    image, depth = Shift(order=("image", "depth")).apply((np.zeros((1, 1, 1)), np.zeros(1)))
    assert image == 1 and depth == -1
    with pytest.raises(NotImplementedError, match="Shift does not define _apply_mask"):
        Shift(order=("mask",)).apply(np.zeros((1, 1)))
    assert repr(T.Compose([Shift()])) == "Compose([Shift])"


def test_resize_keeps_the_ratio_or_not():
    image = np.zeros((20, 31, 3), np.uint8)
    assert T.Resize(10).apply(image).shape == (10, 15, 3)
    assert T.Resize(10).apply(image.transpose(1, 0, 2)).shape == (15, 10, 3)
    assert T.Resize((5, 7)).apply(image).shape == (5, 7, 3)
    assert T.ShortestEdgeResize(10, 12).apply(image).shape == (8, 12, 3)
    chosen = T.ShortestEdgeResize([5, 40], 1000, "choice")
    assert {chosen.apply(image).shape[0] for _ in range(30)} == {5, 40}
    drawn = T.ShortestEdgeResize((5, 6), 1000)
    assert {drawn.apply(image).shape[0] for _ in range(40)} == {5, 6}
    assert T.RandomResize((0.01, 0.01)).apply(image).shape == (1, 1, 3)


def test_crops():
    image = np.arange(7 * 9).reshape(7, 9, 1)
    assert T.CenterCrop((3, 5)).apply(image)[0, 0] == 2 * 9 + 2
    with pytest.raises(ShapeError, match="the image is 7 x 9 and output_size is 8 x 8"):
        T.CenterCrop(8).apply(image)
    assert {T.RandomCrop((7, 8)).apply(image)[0, 0, 0] for _ in range(30)} == {0, 1}
    larger = T.RandomCrop((9, 9), padding_value=1).apply(image)
    assert (larger[:7, :, 0] == image[..., 0]).all() and (larger[7:] == 1).all()
    # A strip has no part of an allowed ratio and size: the middle is taken.
    strip = T.RandomResizedCrop(2, scale_range=(1.0, 1.0)).apply(np.ones((3, 90, 1), np.uint8))
    assert strip.shape == (2, 2, 1) and (strip == 1).all()


def test_flips_are_as_likely_as_said():
    image = np.array([[[1], [2]]])
    flip = T.RandomHorizontalFlip(0.25)
    flipped = sum(flip.apply(image)[0, 0, 0] == 2 for _ in range(1000))
    assert 190 < flipped < 310  # 4.4 standard deviations
    points = T.RandomVerticalFlip(1, order=("image", "coords")).apply((image, np.array([[1, 0]])))[
        1
    ]
    assert points.tolist() == [[1.0, 1.0]] and points.dtype == np.float32


def test_pad():
    image = np.ones((1, 1, 2), np.uint8)
    padded = T.Pad((1, 2, 0, 1), value=(5, 6)).apply(image)
    assert padded.shape == (4, 2, 2) and padded[0, 0].tolist() == [5, 6] and padded[1, 0, 0] == 1
    assert T.Pad(1, value=0.5).apply(image).dtype == np.float32
    with pytest.raises(ArgumentError, match="one for each channel"):
        T.Pad(1, value=(1, 2, 3)).apply(image)
    with pytest.raises(ArgumentError, match=r"size is \(1, 2, 3\)"):
        T.Pad((1, 2, 3))
    with pytest.raises(ArgumentError, match=r"mask_value is 0\.5"):
        T.Pad(1, mask_value=0.5)


def test_normalize():
    image = np.full((2, 2, 3), 10, np.uint8)
    assert T.Normalize([10, 9, 8], [1, 2, 4]).apply(image)[0, 0].tolist() == [0, 0.5, 0.5]
    with pytest.raises(ArgumentError, match="std not 0"):
        T.Normalize(0, [1, 0, 1])
    with pytest.raises(ShapeError, match=r"mean has shape \(2,\)"):
        T.Normalize([1, 2]).apply(image)


def test_compose_in_groups_and_batches():
    class Append(T.Transform):
        def __init__(self, word):
            self.word = word

        def apply(self, sample):
            return sample + self.word

    abc = [Append(word) for word in "abc"]
    assert T.Compose(abc).apply("") == "abc"
    got = {T.Compose(abc, shuffle_indices=[(1, 3)]).apply("") for _ in range(30)}
    assert got == {"abc", "cba"}

    class Reverse(T.Transform):
        def apply_batch(self, inputs):
            return tuple(reversed(inputs))

        def apply(self, sample):
            raise AssertionError

    assert T.Compose([Append("x"), Reverse()], batch_compose=True).apply_batch(["1", "2"]) == (
        "2x",
        "1x",
    )
    with pytest.raises(ArgumentError, match="for single samples"):
        T.Compose(abc, batch_compose=True, shuffle_indices=[(1, 2)])
    for groups in ([(0, 1)], [(1, 4)], [(1, 2), (2, 3)]):
        with pytest.raises(ArgumentError, match="from 1 to 3, each at most once"):
            T.Compose(abc, shuffle_indices=groups)
    with pytest.raises(DTypeError, match=r"transforms\[0\] is <class"):
        T.Compose([T.ToMode])


def test_compose_gives_its_order_to_copies():
    flip = T.RandomHorizontalFlip(1)
    inner = T.Compose([flip])
    outer = T.Compose([inner], order=("image", "coords"))
    image = np.zeros((1, 4, 1))
    assert outer.apply((image, np.array([[1.0, 0.0]])))[1].tolist() == [[3.0, 0.0]]
    assert flip.order == inner.order == ("image",)


def test_colours_stay_where_they_are_at_the_ends():
    black, white = np.zeros((2, 2, 3), np.uint8), np.full((2, 2, 3), 255, np.uint8)
    for transform in (T.ContrastTransform(1), T.SaturationTransform(1), T.HueTransform(0.5)):
        assert (transform.apply(black) == 0).all() and (transform.apply(white) == 255).all()
    assert (T.BrightnessTransform(0.5).apply(black) == 0).all()
    grey = np.full((2, 2, 1), 9, np.uint8)
    assert (T.ColorJitter(0, 0.5, 0.5).apply(grey) == 9).all()
    for transform in (T.HueTransform(0.5), T.Lighting(0.1)):
        with pytest.raises(ShapeError, match=r"must be \(h, w, 3\)"):
            transform.apply(grey)


def test_hue_goes_round_the_circle():
    blue_green_red = np.array([[[0, 0, 200], [0, 200, 0], [200, 0, 0], [10, 20, 30]]], np.float32)
    third = turn_hue(blue_green_red, 1 / 3)
    assert np.allclose(third[0, :3], blue_green_red[0, [1, 2, 0]], atol=1e-3)
    assert np.allclose(turn_hue(third, -1 / 3), blue_green_red, atol=1e-3)
    assert np.allclose(turn_hue(blue_green_red, 1.0), blue_green_red, atol=1e-3)


def test_colour_strengths_are_checked():
    with pytest.raises(
        ArgumentError, match="BrightnessTransform: value is -1; it must be at least 0"
    ):
        T.BrightnessTransform(-1)
    with pytest.raises(
        ArgumentError, match=r"HueTransform: value is 0\.6; it must be from 0 to 0\.5"
    ):
        T.ColorJitter(hue=0.6)
    with pytest.raises(ArgumentError, match="scale is -1"):
        T.Lighting(-1)
    with pytest.raises(ArgumentError, match="std is -1"):
        T.GaussianNoise(std=-1)


def test_other_arguments_are_checked():
    for size in (0, -3, (1, 2, 3), 1.5, (2, 0), "12"):
        with pytest.raises(ArgumentError, match="output_size"):
            T.Resize(size)
    with pytest.raises(ArgumentError, match="interpolation is 4; it must be nearest"):
        T.Resize(2, interpolation=4)
    with pytest.raises(ArgumentError, match='sample_style is "'.replace('"', "'")):
        T.ShortestEdgeResize(2, 3, "other")
    with pytest.raises(ArgumentError, match="min_size is"):
        T.ShortestEdgeResize((3, 2), 3)
    with pytest.raises(ArgumentError, match=r"scale_range is \(2, 1\)"):
        T.RandomResizedCrop(2, scale_range=(2, 1))
    with pytest.raises(ArgumentError, match=r"prob is 1\.5"):
        T.RandomVerticalFlip(1.5)
    with pytest.raises(ArgumentError, match="mode is 'HWC'; it must be \"CHW\""):
        T.ToMode("HWC")


def test_pil_transforms():
    image = np.arange(2 * 3 * 3, dtype=np.uint8).reshape(2, 3, 3)
    image_module = pytest.importorskip("PIL.Image", reason="Pillow is not installed")
    seen = []

    def turned(picture):
        seen.append(picture.getpixel((0, 0)))
        return picture.transpose(image_module.Transpose.ROTATE_90)

    assert np.array_equal(T.TorchTransformCompose([turned]).apply(image), np.rot90(image))
    assert seen == [(2, 1, 0)]  # red first
    assert T.TorchTransformCompose([]).apply(image[..., :1]).shape == (2, 3, 1)


def test_pil_transforms_say_what_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match=r"needs Pillow(.|\n)*pip install pillow"):
        T.TorchTransformCompose([]).apply(np.zeros((2, 2, 3), np.uint8))
