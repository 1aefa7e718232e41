"""Which algorithm a convolution gets: a plain function of its shapes, used where no tuning result says otherwise.

In: shapes and attributes. Out: ``"direct"``, ``"depthwise"``, ``"winograd2"`` or ``"winograd4"``.
After nothing; before ``convolution``.

Winograd's F(4, 3) does 4 times less multiplication than the sum of products and F(2, 3) 2.25 times less, but their
weights are 4 and 1.8 times larger, and come from memory. So F(4, 3) is for images with many tiles, and F(2, 3) for a
few of 14x14; one image of 7x7 waits for its weights with any of them, and takes the smallest.
"""

from __future__ import annotations

from mge.debug import debug

Shape = tuple[int, ...]

FEW_CHANNELS = 16  # below, transforming tiles costs more than it saves
LARGE, MEDIUM, SMALL = 28, 12, 4  # pixels: the smaller side of an image
MANY_IMAGES = 8
# Pixels of a batch that pay for transforming a weight which changes with every step: the transform writes 16 or 36
# numbers where the convolution multiplies 9 times the pixels.
TRAINED_PIXELS = {"winograd2": 256, "winograd4": 512}


def choose_algorithm(
    images: Shape,
    weight: Shape,
    stride: Shape,
    dilation: Shape,
    groups: int = 1,
    is_trained: bool = False,
) -> str:
    """Return the algorithm for a convolution that gives images (n, h, w, c).

    Parameters
    ----------
    images : (n, h, w, c)
        The result: ``y`` forward, ``dx`` for the gradient of the data.
    weight : (o, c / groups, kh, kw)
    stride, dilation : (int, int)
    groups : int
    is_trained : bool
        The weight changes with every run, so that its transform is paid each time.
    """
    if groups > 1 and weight[1] == 1 and weight[0] == groups:
        return "depthwise"
    n, h, w, _ = images
    fits = weight[2:] == (3, 3) and (*stride, *dilation) == (1, 1, 1, 1) and groups == 1
    if debug.deterministic or not fits or min(weight[:2]) < FEW_CHANNELS:
        return "direct"
    size = min(h, w)
    if size >= LARGE or (size >= SMALL and (n >= MANY_IMAGES or (n > 1 and size < MEDIUM))):
        wanted = ["winograd4", "winograd2"]
    else:
        wanted = ["winograd2"] if size >= MEDIUM else []
    pays = (a for a in wanted if not is_trained or n * h * w >= TRAINED_PIXELS[a])
    return next(pays, "direct")
