"""Decoding of the user's own images: from the bytes of an image file to pixels of one size."""

import contextlib
import dataclasses
import io
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from PIL import ExifTags, Image, ImageOps, PngImagePlugin, UnidentifiedImageError

from storage.error_policy import Permanent

_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "WEBP", "AVIF", "TIFF", "PPM")
"""The only formats that are tried: a file's content, not its name, decides which decoder runs on it."""
_JPEG = ("JPEG", "MPO")
"""Pillow's names for JPEG; the second is for files with further images, such as previews."""
_MODES = {1: "L", 3: "RGB"}
_BITS = (8, 10, 12, 14, 16)
"""Possible bit depths of 16-bit gray images; the smallest one that holds an image's largest value is assumed."""
_LARGE = 2**23
"""Pixels from which a process decodes one image at a time: one takes up to 20 bytes a pixel."""
_one_large = threading.Lock()
_CAMERA_LENGTH = 60
_PNG_TEXT_BYTES = 2**25
"""Largest text or color profile of a PNG; Pillow refuses to read the pixels beside one of 1 MiB."""
_JPEG_MARKER = re.compile(rb"\xff([\x02-\xcf\xd9-\xfe])")
"""Marker of a segment or of the end; neither a stuffed byte nor a restart marker, which stand among the pixels."""
_JPEG_END = b"\xd9"
Crop = tuple[int, int, int, int]
"""Top, left, height and width of a part of an image."""


class Unreadable(ValueError):
    """The bytes are not a complete image in a supported format."""


@dataclasses.dataclass(frozen=True)
class Decoded:
    """One image in the form a model takes, with its original size."""

    pixels: bytes
    """uint8, HWC order; the content of the file itself where images are stored as they came."""
    width: int
    height: int
    gray: float | None = None
    """Mean brightness of the whole image, 0 to 1, if requested."""
    format: str = ""
    """Pillow's name of the file's format, by its content; empty for plain pixels."""
    camera: str = ""
    """Maker and model of the camera, from the EXIF; empty if it has none."""


def decoded(
    content: bytes, size: int, channels: int, *, with_facts: bool = False, max_megapixels: int | None = None
) -> Decoded:
    """Decode the first frame in `content`, apply its EXIF orientation, and crop its centre to `size` pixels a side.

    The table in docs/images.md lists the conversion of each kind of pixels. Raises `Unreadable`, also for an image of
    more than `max_megapixels`.
    """
    with _opened(content) as image:
        (width, height), mode = image.size, _MODES[channels]
        if max_megapixels and width * height > max_megapixels * 10**6:
            limit = f"max_megapixels={max_megapixels}"
            raise Unreadable(f"{width:,} x {height:,} pixels, more than {limit}; scale it down, or raise the limit")
        if image.format in _JPEG:
            if not _has_jpeg_end(content):
                raise Unreadable("truncated")
            image.draft(mode, (2 * size, 2 * size))  # a large image need not be decoded in full

        def fitted() -> Decoded:
            flat = _flat(image)
            pixels = ImageOps.fit(flat.convert(mode), (size, size), method=Image.Resampling.BILINEAR).tobytes()
            format_ = "JPEG" if image.format in _JPEG else image.format or ""
            facts = (_brightness(flat), format_, _camera(image)) if with_facts else (None, format_)
            return Decoded(pixels, width, height, *facts)

        if image.width * image.height < _LARGE:
            return fitted()
        with _one_large, ThreadPoolExecutor(1) as pool:  # the C library keeps what a thread frees for the next one
            return pool.submit(fitted).result()


def _has_jpeg_end(content: bytes) -> bool:
    """Return whether a JPEG has its own end marker, not only that of a preview; Pillow takes padding for pixels."""
    place = 0
    while marker := _JPEG_MARKER.search(content, place):
        if marker[1] == _JPEG_END:
            return True
        place = marker.end() + int.from_bytes(content[marker.end() : marker.end() + 2])
    return False


def decode_crop(content: bytes, size: int, channels: int, *, draw: Callable[[int, int], Crop]) -> Image.Image:
    """Decode as `decoded` does, but crop what `draw` returns for the upright image's height and width.

    A JPEG is decoded at the smallest scale that leaves the crop twice `size`. If its EXIF turns an image whose sides
    are no multiples of 8, the result is shifted by up to half a pixel. Raises `Unreadable`.
    """
    with _opened(content) as image:
        mode, is_jpeg, scale = _MODES[channels], image.format in _JPEG, 1
        if is_jpeg:
            is_on_side = image.getexif().get(ExifTags.Base.Orientation, 1) > 4
            top, left, *sides = draw(*(image.size if is_on_side else image.size[::-1]))
            scale = next((times for times in (8, 4, 2) if min(sides) >= 2 * size * times), 1)
            image.draft(mode, (image.width // scale, image.height // scale))
        with _one_large if image.width * image.height >= _LARGE else contextlib.nullcontext():
            upright = _flat(image).convert(mode)
        if not is_jpeg:
            top, left, *sides = draw(upright.height, upright.width)
        box = (left / scale, top / scale, (left + sides[1]) / scale, (top + sides[0]) / scale)
        return upright.resize((size, size), Image.Resampling.BILINEAR, box=box)


@contextlib.contextmanager
def _opened(content: bytes) -> Iterator[Image.Image]:
    """Open an image without decoding it. Raises `Unreadable`, also for errors in the block."""
    if not content:
        raise Unreadable("empty file")
    PngImagePlugin.MAX_TEXT_CHUNK = _PNG_TEXT_BYTES
    try:
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
            if "exif" in image.info:
                with contextlib.suppress(SyntaxError):  # broken metadata of a good image: from now on Pillow finds none
                    image.getexif()
            yield image
    except UnidentifiedImageError:
        raise Unreadable(f"not an image in a supported format ({', '.join(_FORMATS)})") from None
    except (MemoryError, Permanent, Unreadable):  # of this process, such as the job's deadline; or named already
        raise
    except Exception as error:  # Pillow raises nearly any error for a broken file
        message = " ".join(str(error).split())[:200] or type(error).__name__
        is_cut = re.search("truncated|incomplete|not enough image data", message, re.IGNORECASE)
        raise Unreadable("truncated" if is_cut else f"damaged or of an unsupported kind: {message}") from None


def _camera(image: Image.Image) -> str:
    """Return maker and model from the EXIF, without control characters and cut to a readable length."""
    tags = [image.getexif().get(tag) for tag in (ExifTags.Base.Make, ExifTags.Base.Model)]
    texts = ("".join(filter(str.isprintable, tag)) if isinstance(tag, str) else "" for tag in tags)
    maker, model = (" ".join(text.split()) for text in texts)
    name = model if model.lower().startswith(maker.lower()) else f"{maker} {model}"
    return name.strip()[:_CAMERA_LENGTH]


def day_of(content: bytes) -> str:
    """Return the day on which a photo was taken, from the EXIF in its first bytes, such as 2026-11-28; else nothing."""
    with contextlib.suppress(Exception), Image.open(io.BytesIO(content), formats=_FORMATS) as image:
        taken = image.getexif().get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.DateTimeOriginal)
        if match := re.match(r"(\d{4}):(\d\d):(\d\d)\b", str(taken)):
            return "-".join(match.groups())
    return ""


def _brightness(image: Image.Image) -> float:
    small = image.convert("L").resize((16, 16), Image.Resampling.BILINEAR)
    return float(np.asarray(small).mean() / 255)


def _flat(image: Image.Image) -> Image.Image:
    """Rotate an open image by its EXIF and put it on white."""
    _check_bits(image)
    upright = ImageOps.exif_transpose(image)
    return _on_white(_gray(upright) if image.mode.startswith("I;16") else upright)


def _check_bits(image: Image.Image) -> None:
    """Raise `Unreadable` for pixels that are neither 8-bit nor 16-bit gray: Pillow would cut their values off."""
    tiles = getattr(image, "tile", None)
    stored = str(tiles[0][3]) if tiles else ""  # Pillow's name for the pixels as the file has them, such as RGB;16B
    is_inverted = getattr(image, "tag_v2", {}).get(262) == 0  # a TIFF in which 0 is white
    is_gray = image.mode.startswith("I;16") and not is_inverted and "transparency" not in image.info
    if image.mode in ("F", "I") or (";16" in stored and not is_gray):
        raise Unreadable("unsupported: neither 8 bits per channel nor opaque 16-bit gray; save it with 8 bits")


def _gray(image: Image.Image) -> Image.Image:
    """Convert 16-bit gray to 8 bits."""
    numbers = np.asarray(image)
    bits = next(bits for bits in _BITS if numbers.max(initial=0) < 2**bits)
    return Image.fromarray((numbers >> (bits - 8)).astype(np.uint8))


def _on_white(image: Image.Image) -> Image.Image:
    """Put transparent parts of `image` on white; raises `Unreadable` if nothing is visible then."""
    if not image.has_transparency_data:
        return image
    seen = image.convert("RGBA")
    flat = Image.alpha_composite(Image.new("RGBA", seen.size, "white"), seen).convert("RGB")
    if seen.getextrema()[-1] != (255, 255) and flat.getextrema() == ((255, 255),) * 3:
        raise Unreadable("transparent image of which nothing is visible on white; save it without transparency")
    return flat
