"""Images of every kind become pixels of one size; a broken one raises one kind of error."""

import io
import struct
import zlib
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageOps
from sklearn.datasets import load_sample_image

from tasks.jobs.deadline import DeadlineExceeded
from tasks.learning.decode import Unreadable, decode_crop, decoded
from tests.image_folder import picture


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    sink = io.BytesIO()
    image.save(sink, kind, **options)  # type: ignore[arg-type]
    return sink.getvalue()


def pixels(content: bytes, *, size: int = 8, channels: int = 3) -> np.ndarray:
    return np.frombuffer(decoded(content, size, channels).pixels, np.uint8).reshape(size, size, channels)


RED = Image.new("RGB", (20, 30), (200, 0, 0))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
def test_every_kind_of_pixels_is_converted_to_the_requested_channels(mode: str) -> None:
    white = Image.new("L", (9, 7), 255)
    gray = Image.fromarray(np.full((7, 9), 65535, np.uint16)) if mode == "I;16" else white.convert(mode)
    assert all((pixels(saved(gray, "TIFF"), channels=channels) == 255).all() for channels in (1, 3))


_REPEATED = np.repeat(np.linspace(0, 1, 8), 8).reshape(8, 8)
"""From black to white, row by row."""
RAMP = (_REPEATED * 255).astype(np.uint8)


def gray(most: int) -> np.ndarray:
    """`RAMP` as whole numbers from 0 to `most`."""
    return (_REPEATED * most).astype(np.uint16)


def png(numbers: np.ndarray, *, color: int, transparent: tuple[int, ...] = ()) -> bytes:
    """A PNG of 16 bits as Pillow does not write it: PNG's type of `color`, and the numbers that are transparent."""

    def chunk(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))

    height, width = numbers.shape[:2]
    lines = [b"\0" + row.astype(">u2").tobytes() for row in numbers]
    header = struct.pack(">IIBBBBB", width, height, 16, color, 0, 0, 0)
    chunks = [chunk(b"IHDR", header), chunk(b"IDAT", zlib.compress(b"".join(lines))), chunk(b"IEND", b"")]
    if transparent:
        chunks.insert(1, chunk(b"tRNS", struct.pack(f">{len(transparent)}H", *transparent)))
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def drawing(mode: str, *, ink: int = 0) -> Image.Image:
    """A square of `ink` on transparency, whose hidden pixels are black, as most programs leave them."""
    image = Image.new("RGBA", (8, 8), (0, 0, 0, 0))
    image.paste((ink, ink, ink, 255), (2, 2, 6, 6))
    return image.quantize(4) if mode == "P" else image.convert(mode)


@pytest.mark.parametrize("bits", [8, 10, 12, 14, 16])
def test_gray_of_16_bits_is_scaled_by_the_fewest_bits_that_hold_it(bits: int) -> None:
    numbers = gray(2**bits - 1)
    big_endian = saved(Image.fromarray(numbers.astype(">u2")), "TIFF", tiffinfo={}, big_tiff=False)
    assert big_endian[:2] == b"MM"
    for content in (saved(Image.fromarray(numbers)), saved(Image.fromarray(numbers), "TIFF"), big_endian):
        assert (pixels(content, channels=1)[..., 0] == numbers >> (bits - 8)).all()


UNSUPPORTED = {
    "16-bit RGB": png(np.repeat(gray(65535)[..., None], 3, axis=2), color=2),
    "16-bit gray with alpha": png(np.repeat(gray(65535)[..., None], 2, axis=2), color=4),
    "16-bit RGBA": png(np.repeat(gray(65535)[..., None], 4, axis=2), color=6),
    "16-bit gray with a transparent value": png(gray(4095), color=0, transparent=(65535,)),
    "16-bit TIFF in which 0 is white": saved(Image.fromarray(gray(65535)), "TIFF", tiffinfo={262: 0}),
    "floats": saved(Image.fromarray(np.ones((8, 8), np.float32)), "TIFF"),
    "signed 16-bit": saved(Image.fromarray(gray(255)), "TIFF", tiffinfo={339: 2}),
    "32-bit": saved(Image.fromarray(np.full((8, 8), 255, np.int32)), "TIFF"),
    "PGM": b"P5 8 8 4095\n" + gray(4095).astype(">u2").tobytes(),
}


@pytest.mark.parametrize("kind", UNSUPPORTED)
def test_pixels_that_are_neither_8_bit_nor_16_bit_gray_are_refused(kind: str) -> None:
    with pytest.raises(Unreadable, match="^unsupported: neither 8 bits .* save it with 8 bits$"):
        decoded(UNSUPPORTED[kind], 8, 1)


_TRANSPARENT = [(mode, kind) for kind in ("PNG", "WEBP", "TIFF") for mode in ("RGBA", "LA", "P")][:-1]
"""A TIFF has no transparent colour of its palette."""


@pytest.mark.parametrize(("mode", "kind"), _TRANSPARENT)
def test_what_is_transparent_is_white(mode: str, kind: str) -> None:
    options = {"lossless": True} if kind == "WEBP" else {}
    result = pixels(saved(drawing(mode), kind, **options))
    assert (result[0] == 255).all() and (result[3, 3] == 0).all()


def test_an_opaque_image_with_transparency_keeps_its_pixels() -> None:
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert (pixels(saved(Image.fromarray(image).convert("RGBA"))) == image).all()
    assert (pixels(saved(Image.new("RGBA", (8, 8), "white"))) == 255).all()


@pytest.mark.parametrize("image", [Image.new("RGBA", (8, 8), (9, 9, 9, 0)), drawing("RGBA", ink=255)])
def test_image_that_is_invisible_on_white_is_refused(image: Image.Image) -> None:
    with pytest.raises(Unreadable, match="nothing is visible on white"):
        decoded(saved(image), 8, 3)


def test_cmyk_is_converted_to_rgb() -> None:
    red = Image.new("CMYK", (8, 8), (0, 255, 255, 0))
    for kind in ("JPEG", "TIFF"):
        assert np.abs(pixels(saved(red, kind)).astype(int) - [255, 0, 0]).max() < 12


@pytest.mark.parametrize("kind", ["GIF", "PNG", "WEBP", "TIFF", "AVIF"])
def test_of_several_frames_the_first_is_taken(kind: str) -> None:
    others = [Image.new("RGB", (20, 30), (0, shade, 0)) for shade in (100, 200)]
    image_pixels = pixels(saved(RED, kind, save_all=True, append_images=others))
    assert np.abs(image_pixels.astype(int) - [200, 0, 0]).max() < 12


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF", "AVIF", "PPM"])
def test_every_format_is_read_and_turned_as_its_exif_says(kind: str) -> None:
    image = decoded(saved(RED, kind), 8, 3)
    assert (image.width, image.height) == (20, 30)
    assert np.abs(np.frombuffer(image.pixels, np.uint8).reshape(8, 8, 3).astype(int) - [200, 0, 0]).max() < 12
    if kind in ("BMP", "GIF", "PPM"):  # they have no EXIF
        return
    left_half = Image.new("L", (8, 8))
    left_half.paste(255, (0, 0, 4, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned right by a quarter
    result = pixels(saved(left_half, kind, exif=exif), channels=1)
    assert result[:4].min() > 240 and result[4:].max() < 16


METADATA = {
    b"eXIf": b"\x00\x08\x00\x02\x01\x12\x00\x03",
    b"iCCP": b"scanner\0\0" + zlib.compress(bytes(2**21)),
    b"zTXt": b"log\0\0" + zlib.compress(bytes(2**21)),
}


def with_metadata(name: bytes) -> bytes:
    """A good PNG with broken or large metadata."""
    good, header, content = saved(RED), 33, METADATA[name]
    chunk = struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    return good[:header] + chunk + good[header:]


@pytest.mark.parametrize("name", METADATA)
def test_a_png_with_broken_or_large_metadata_keeps_its_pixels(name: bytes) -> None:
    result = decoded(with_metadata(name), 8, 3, with_facts=True)
    assert result.pixels == decoded(saved(RED), 8, 3).pixels and result.camera == ""


def test_the_middle_of_a_long_image_is_taken() -> None:
    wide = Image.new("L", (24, 8))
    wide.paste(255, (8, 0, 16, 8))
    assert (pixels(saved(wide), channels=1) == 255).all()


@pytest.mark.parametrize("content", [b"", b"<html>", saved(RED)[:40], saved(RED, "JPEG")[:300], b"%!PS-Adobe-3.0 EPSF"])
def test_broken_image_raises_an_error_of_one_line(content: bytes) -> None:
    with pytest.raises(Unreadable) as caught:
        decoded(content, 8, 3)
    assert str(caught.value) and "\n" not in str(caught.value) and " at 0x" not in str(caught.value)


def test_an_image_of_more_pixels_than_allowed_is_refused_before_it_is_decoded() -> None:
    content = saved(Image.new("1", (1001, 1000)))
    assert decoded(content, 8, 3, max_megapixels=2).width == 1001
    with pytest.raises(Unreadable, match="^1,001 x 1,000 pixels, more than max_megapixels=1; scale it down, or raise"):
        decoded(content[:60], 8, 3, max_megapixels=1)


@pytest.mark.parametrize("error", [DeadlineExceeded("over"), MemoryError()])
def test_what_is_not_the_images_fault_is_not_taken_for_a_broken_one(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Image, "open", fails)
    with pytest.raises(type(error)):
        decoded(saved(RED), 8, 3)


JPEGS: tuple[dict[str, Any], ...] = ({}, {"progressive": True}, {"restart_marker_rows": 1})
"""Options of Pillow for kinds of JPEG that are common."""


@pytest.mark.parametrize("options", JPEGS, ids=str)
def test_a_jpeg_without_its_end_is_truncated_whatever_it_is_padded_with_or_has_as_a_preview(
    options: dict[str, Any],
) -> None:
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3)).astype(np.uint8))
    content, preview = saved(noise, "JPEG", **options), saved(picture(1, 0), "JPEG")
    with_preview = content[:2] + b"\xff\xe1" + (2 + len(preview)).to_bytes(2) + preview + content[2:]
    for whole in (content, with_preview):
        for after in (b"", bytes(5000), b"\xff" * 100, preview):
            assert decoded(whole + after, 8, 3).format == "JPEG"
        for padding in (b"\0", b"\xff", b"\xaa"):
            with pytest.raises(Unreadable, match="^truncated$"):
                decoded(whole[: -len(content) // 3] + padding * (len(content) // 3), 8, 3)


@pytest.mark.parametrize("size", [16, 200])
@pytest.mark.parametrize("orientation", [1, 6])
@pytest.mark.parametrize("kind", ["JPEG", "PNG"])
def test_a_crop_is_of_the_upright_image_and_a_large_jpeg_is_decoded_at_the_scale_that_it_needs(
    kind: str, orientation: int, size: int
) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    content = saved(Image.fromarray(load_sample_image("china.jpg")[:424]), kind, exif=exif)  # 640 x 424
    drawn = list[tuple[int, int]]()

    def draw(height: int, width: int) -> tuple[int, int, int, int]:
        drawn.append((height, width))
        return 40, 80, 300, 280

    def cropped(times: int) -> np.ndarray:
        image = Image.open(io.BytesIO(content))
        image.draft("RGB", (640 // times, 424 // times))
        upright = ImageOps.exif_transpose(image)
        assert upright.size == tuple(side // times for side in drawn[0][::-1])
        box = (80 / times, 40 / times, 360 / times, 340 / times)
        return np.asarray(upright.resize((size, size), Image.Resampling.BILINEAR, box=box))

    crop = np.asarray(decode_crop(content, size, 3, draw=draw))
    assert drawn == [(424, 640) if orientation == 1 else (640, 424)]
    assert np.abs(crop.astype(int) - cropped(1)).mean() < 2  # of 255
    is_scaled = (kind, size) == ("JPEG", 16)
    assert (crop == cropped(8 if is_scaled else 1)).all() and is_scaled == (crop != cropped(1)).any()
