"""Decoding of the user's own images: from the bytes of an image file to pixels of one size."""

import contextlib
import dataclasses
import io
import re
from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from PIL.JpegImagePlugin import JpegImageFile

from storage.error_policy import Permanent
from tasks.learning import jpeg_end

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "AVIF", "TIFF", "PPM")
"""The only formats that are tried: a file's content, not its name, decides which decoder runs on it."""
_WITH_FRAMES = ("AVIF", "GIF", "PNG", "TIFF", "WEBP")
"""Formats that may hold animations or several pages; further images in a JPEG file are only previews."""
_JPEG = ("JPEG", "MPO")
"""Pillow's names for JPEG; the second is for files with further images, such as previews."""
_MODES = {1: "L", 3: "RGB"}
_BITS = (8, 10, 12, 14, 16)
"""Possible bit depths of 16-bit gray images; the smallest one that holds an image's largest value is assumed."""
_LARGEST = 2**16 - 1
"""Largest 16-bit value; a portable graymap that declares it may mean its container, not the range of its values."""
_TRANSPARENT = "transparency"  # Pillow's key for the transparent colour or gray value
_IN_WORDS = {
    "truncated|incomplete|not enough image data": "truncated",
    "decod(er|ing) (error|object|of)|(cannot|failed to) decode|data stream": "damaged: its pixels cannot be decoded",
    "cannot load this image": "damaged: it contains no pixels",
    "decompression bomb": f"more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels; scale it down",
}
"""Reasons in a user's words for Pillow's messages that match an expression."""


class Unreadable(ValueError):
    """The bytes are not a complete image in a supported format."""


@dataclasses.dataclass(frozen=True)
class Decoded:
    """One image in the form a model takes, with its original size and mode."""

    pixels: bytes
    """uint8, HWC order; the content of the file itself where images are stored as they came."""
    width: int
    height: int
    mode: str
    """Pillow's name for its kind of pixels, such as `L` or `RGB`, and a note if their reading involved a choice."""


@dataclasses.dataclass(frozen=True)
class _Stored:
    """Properties of a file's pixel values that Pillow drops when it loads the pixels."""

    bits: int | None
    """Bits that a 16-bit gray image declares to use; none if it declares nothing."""
    has_deep_colours: bool
    """True if each colour channel has 16 bits, of which Pillow keeps the upper 8."""
    white_is_zero: bool
    """True if 0 is white in 16-bit gray; for fewer bits Pillow inverts the values itself."""
    step: int
    """Difference between two neighbouring gray values after Pillow has scaled fewer than 8 bits up to 8."""

    @classmethod
    def of(cls, image: Image.Image) -> "_Stored":
        """Read the properties of `image`, whose pixels must not be loaded yet."""
        tiles = getattr(image, "tile", None)
        codec, _, _, settings = tiles[0] if tiles else ("", None, 0, ())
        values = (settings,) if isinstance(settings, str) else tuple(settings or ())
        raw = str(values[0]) if values else ""
        largest = values[1] if codec.startswith("ppm") and len(values) > 1 else _LARGEST
        is_deep_ppm = image.format == "PPM" and codec.startswith("ppm") and largest == _LARGEST
        return cls(
            bits=16 if largest != _LARGEST else 12 if raw == "I;12" else None,
            has_deep_colours=(image.format in ("PNG", "TIFF") and bool(re.match("[A-Za-z]{2,};16", raw)))
            or (is_deep_ppm and image.mode == "RGB"),
            white_is_zero=image.format == "TIFF" and image.tag_v2.get(262) == 0,  # type: ignore[attr-defined]
            step={"1": 255, "L;2": 85, "L;4": 17}.get(raw, 1) if image.format == "PNG" else 1,
        )


def decoded(content: bytes, size: int, channels: int) -> Decoded:
    """Decode the first frame in `content`, apply its EXIF orientation, and crop its centre to `size` pixels a side.

    The table in docs/your-own.md lists the conversion of each kind of pixels. Raises `Unreadable`.
    """
    if not content:
        raise Unreadable("empty file")
    with _unreadable(), Image.open(io.BytesIO(content), formats=_FORMATS) as image:
        if image.format not in _JPEG:
            return _decoded(image, size, channels)
        return _decoded_jpeg(content, image, size, channels)


def _decoded_jpeg(content: bytes, image: Image.Image, size: int, channels: int) -> Decoded:
    if (end := jpeg_end.find(content)) is None:
        raise Unreadable("truncated")
    draft = (_MODES[channels], (2 * size, 2 * size))  # a large image need not be decoded in full
    width, height, mode = *image.size, image.mode
    image.draft(*draft)
    decoded = _decoded(image, size, channels)
    if jpeg_end.comes_early(content, end, image, draft=draft):
        raise Unreadable("truncated")
    return dataclasses.replace(decoded, width=width, height=height, mode=mode)


def decode_uncropped(content: bytes, channels: int) -> Image.Image:
    """Decode as `decoded` does, but return the whole image at its own size, for a crop of it. Raises `Unreadable`."""
    if not content:
        raise Unreadable("empty file")
    with _unreadable(), Image.open(io.BytesIO(content), formats=_FORMATS) as image:
        flat, _ = _flat(image, image.mode)
        return flat.convert(_MODES[channels])


def fitted(image: Image.Image, size: int, channels: int) -> Decoded:
    """Convert an open image as `decoded` does, without modifying it. Raises `Unreadable`.

    A JPEG whose pixels are not loaded yet is decoded from its file, at the same scale as there. Pixels that are already
    loaded are converted as they are.
    """
    if isinstance(image, JpegImageFile) and (file := getattr(image, "fp", None)) and not file.closed:
        position = file.tell()
        file.seek(0)
        content = file.read()
        file.seek(position)
        return decoded(content, size, channels)
    with _unreadable():
        return _decoded(image, size, channels)


@contextlib.contextmanager
def _unreadable() -> Iterator[None]:
    try:
        yield
    except UnidentifiedImageError:
        raise Unreadable(f"not an image in a supported format ({', '.join(_FORMATS)})") from None
    except (MemoryError, Permanent, Unreadable):  # of this process, such as the job's deadline; or named already
        raise
    except Exception as error:  # Pillow raises nearly any error for a broken file
        raise Unreadable(_in_words(error)) from None


def _in_words(error: Exception) -> str:
    message = " ".join(str(error).split())[:200] or type(error).__name__
    usual = f"damaged or of an unsupported kind: {message}"
    return next((words for pattern, words in _IN_WORDS.items() if re.search(pattern, message, re.IGNORECASE)), usual)


def _decoded(image: Image.Image, size: int, channels: int) -> Decoded:
    (width, height), mode = image.size, image.mode
    flat, mode = _flat(image, mode)
    pixels = _fitted(flat, size, channels)
    if image.format in _WITH_FRAMES and getattr(image, "is_animated", False):
        mode += " (first of several frames)"
    return Decoded(pixels, width, height, mode)


def _flat(image: Image.Image, mode: str) -> tuple[Image.Image, str]:
    """Rotate an open image by its EXIF and put it on white; return it with its `mode`, noting a choice of range."""
    stored = _Stored.of(image)
    upright = ImageOps.exif_transpose(image)
    if upright.mode == "LAB":  # Pillow converts it only to this mode
        upright = upright.convert("RGB")
    if mode.startswith("I;16") or (mode == "I" and image.format == "PPM"):
        upright, bits = _gray(upright, stored)
        mode = f"{mode} ({bits} bits)"
    elif mode in ("F", "I"):
        raise Unreadable(
            "unsupported image with 32-bit or signed values: its value range is undefined; save it with 8 or 16 bits"
        )
    elif stored.has_deep_colours:
        _check_deep(upright)
    return _on_white(upright, step=stored.step), mode


def scaled(image_HWC: np.ndarray, size: int, channels: int) -> Decoded:
    """Convert pixels (uint8, HWC; 1 or 3 channels, or 2 or 4 with alpha as the last) as `decoded` does.

    Pixels that already have the right shape are not changed. Raises `Unreadable`.
    """
    height, width, depth = image_HWC.shape
    image = Image.fromarray(image_HWC[:, :, 0] if depth == 1 else image_HWC)
    fits = image_HWC.shape == (size, size, channels)
    stored = image_HWC.tobytes() if fits else _fitted(_on_white(image), size, channels)
    return Decoded(stored, width, height, image.mode)


def _gray(image: Image.Image, stored: _Stored) -> tuple[Image.Image, int]:
    """Convert 16-bit gray to 8 bits, transparent pixels to white; return it with the bit depth that was assumed."""
    numbers = np.asarray(image)
    hidden = numbers == image.info.get(_TRANSPARENT, -1)
    most = int(numbers.max(initial=0, where=~hidden))
    bits = stored.bits or next(bits for bits in _BITS if most < 2**bits)
    shown = (numbers >> (bits - 8)).astype(np.uint8)
    if stored.white_is_zero:
        shown = 255 - shown
    shown[hidden] = 255
    return Image.fromarray(shown), bits


def _check_deep(image: Image.Image) -> None:
    if _TRANSPARENT in image.info:
        raise Unreadable("unsupported image with 16 bits per channel and a transparent colour; save it with 8 bits")
    highest = [high for name, (_, high) in zip(image.getbands(), _extrema(image), strict=True) if name != "A"]
    if max(highest) < 2**6:
        raise Unreadable(
            "unsupported image with 16 bits per channel of which at most 14 are used: it would appear nearly black; "
            "save it with 8 bits"
        )


def _on_white(image: Image.Image, *, step: int = 1) -> Image.Image:
    """Put transparent parts of `image` on white; raises `Unreadable` if nothing is visible then.

    The transparent gray value that the file declares is multiplied by `step`.
    """
    if not image.has_transparency_data:
        return image
    if isinstance(image.info.get(_TRANSPARENT), int) and image.mode in ("1", "L"):
        image.info[_TRANSPARENT] *= step
    seen = image.convert("RGBA")
    flat = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")
    if _extrema(seen)[3][0] < 255 and all(low == 255 for low, _ in _extrema(flat)):
        raise Unreadable("transparent image of which nothing is visible on white; save it without transparency")
    return flat


def _extrema(image: Image.Image) -> list[tuple[float, float]]:
    return list(image.getextrema())  # type: ignore[arg-type]  # a pair per band, as there are several


def _fitted(image: Image.Image, size: int, channels: int) -> bytes:
    return ImageOps.fit(image.convert(_MODES[channels]), (size, size), method=Image.Resampling.BILINEAR).tobytes()
