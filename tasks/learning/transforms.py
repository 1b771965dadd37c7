"""Transforms of images that are stored as their files' bytes: from a table of files to a table of pixels."""

import dataclasses
import functools
import math

import numpy as np
import pyarrow as pa
from PIL import Image

from tasks.learning import decode, images
from tasks.learning.recipe import Recipe
from tasks.learning.variants import FileAugment

_RATIOS = (3 / 4, 4 / 3)
"""Smallest and largest width divided by height of a crop, as in torchvision's `RandomResizedCrop`."""
_TRIES = 10
"""Draws of a crop until one fits, as in torchvision; then the centre is taken."""


@dataclasses.dataclass(frozen=True)
class Transform:
    """Decoding and augmentation of rows of files: a row's pixels depend only on its file, the seed, epoch and id."""

    recipe: Recipe
    image_shape: tuple[int, int, int]

    def __call__(self, table: pa.Table, *, epoch: int | None) -> pa.Table:
        """Return ids, pixels (fixed-size binary, uint8 HWC) and labels; `epoch` None: decode and resize only."""
        augment = self.recipe.finetuning.augment
        assert isinstance(augment, FileAugment)
        is_plain = augment.crop_scale == 1 and augment.flip == "none" and augment.color_jitter == 0
        if epoch is None or is_plain:
            pixels, _ = images.to_arrays(table, self.image_shape)
        else:
            contents, ids = table["image"].to_pylist(), table["id"].to_pylist()
            pixels = np.empty((len(ids), *self.image_shape), np.uint8)
            for number, (content, id_) in enumerate(zip(contents, ids, strict=True)):
                pixels[number] = self._augmented(
                    content, augment, np.random.default_rng((self.recipe.finetuning.seed, epoch, id_))
                )
        return images.to_table(table["id"].to_numpy(), pixels, table["label"].to_numpy(), classes=())

    def _augmented(self, content: bytes, augment: FileAugment, random: np.random.Generator) -> np.ndarray:
        from torchvision.transforms.v2 import functional  # imports torch

        size, _, channels = self.image_shape
        if augment.crop_scale < 1:
            draw = functools.partial(crop, smallest=augment.crop_scale, random=random)
            image = decode.decode_crop(content, size, channels, draw=draw)
        else:
            array = np.frombuffer(decode.decoded(content, size, channels).pixels, np.uint8).reshape(self.image_shape)
            image = Image.fromarray(array[:, :, 0] if channels == 1 else array)
        if augment.flip == "horizontal" and random.random() < 0.5:
            image = functional.horizontal_flip(image)
        if augment.color_jitter > 0:
            low = max(0.0, 1 - augment.color_jitter)
            strengths = low + (1 + augment.color_jitter - low) * random.random(3)
            image = functional.adjust_brightness(image, float(strengths[0]))
            image = functional.adjust_contrast(image, float(strengths[1]))
            if channels == 3:
                image = functional.adjust_saturation(image, float(strengths[2]))
        return np.asarray(image).reshape(self.image_shape)


def crop(height: int, width: int, *, smallest: float, random: np.random.Generator) -> decode.Crop:
    """Draw top, left, height and width of a crop with at least the share `smallest` of the area, as torchvision does.

    Up to ten draws; if none fits, the largest centred crop with an allowed ratio of its sides.
    """
    for _ in range(_TRIES):
        area = height * width * (smallest + (1 - smallest) * random.random())
        low, high = map(math.log, _RATIOS)
        ratio = math.exp(low + (high - low) * random.random())
        w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
        if 0 < w <= width and 0 < h <= height:
            return int((height - h + 1) * random.random()), int((width - w + 1) * random.random()), h, w
    w = min(width, max(1, round(height * _RATIOS[1])))
    h = min(height, max(1, round(width / _RATIOS[0])))
    return (height - h) // 2, (width - w) // 2, h, w
