"""From the bytes of an image file to pixels of one size: what a person's own images go through."""

import dataclasses
import io

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "PPM")
"""No others are tried: what a file holds, not its name, would choose the code that reads it."""
_SIXTEEN_BITS = ("PNG", "PPM")
"""Formats whose whole numbers of more than 8 bits, Pillow's mode `I`, have 16."""
_MODES = {1: "L", 3: "RGB"}


class Unreadable(ValueError):
    """The bytes are no whole image of a known format."""


@dataclasses.dataclass(frozen=True)
class Decoded:
    """One image as a model takes it, and what it was before."""

    pixels: bytes
    """uint8, HWC order."""
    width: int
    height: int
    mode: str
    """Pillow's name for its kind of pixels, such as `L` or `RGB`."""


def decoded(content: bytes, size: int, channels: int) -> Decoded:
    """The image in `content` turned as its EXIF says: its middle, `size` pixels a side; of several frames the first.

    Raises `Unreadable`.
    """
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            (width, height), mode = image.size, image.mode
            image.draft(_MODES[channels], (2 * size, 2 * size))  # a large JPEG need not be decoded in full
            if mode == "F" or (mode == "I" and image.format not in _SIXTEEN_BITS):
                raise Unreadable("nobody says which of its numbers is white; save it with 8 or 16 bits")
            return Decoded(_fitted(ImageOps.exif_transpose(image), size, channels), width, height, mode)
    except UnidentifiedImageError:
        raise Unreadable(f"no image in a format of {', '.join(_FORMATS)}") from None
    except MemoryError:
        raise
    except Exception as error:  # Pillow's readers raise nearly anything for what is broken
        if getattr(error, "permanent", False):  # a deadline's alarm
            raise
        raise Unreadable(" ".join(str(error).split())[:200] or type(error).__name__) from None


def scaled(image_HWC: np.ndarray, size: int, channels: int) -> Decoded:
    """Pixels (uint8, 1 or 3 channels) likewise; those that fit already stay as they are."""
    height, width, depth = image_HWC.shape
    image = Image.fromarray(image_HWC[:, :, 0] if depth == 1 else image_HWC)
    fits = image_HWC.shape == (size, size, channels)
    stored = image_HWC.tobytes() if fits else _fitted(image, size, channels)
    return Decoded(stored, width, height, image.mode)


def _fitted(image: Image.Image, size: int, channels: int) -> bytes:
    if image.mode.startswith("I"):  # 16 bits of gray, of which Pillow would keep the lowest, or cut off what is above
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    fitted = ImageOps.fit(image.convert(_MODES[channels]), (size, size), method=Image.Resampling.BILINEAR)
    return fitted.tobytes()
