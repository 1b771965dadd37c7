"""Images of every kind become pixels of one size; what is broken is told by one error."""

import io

import numpy as np
import pytest
from PIL import Image

from tasks.jobs.deadline import DeadlineExceeded
from tasks.learning.decode import Unreadable, decoded, scaled


def saved(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    sink = io.BytesIO()
    image.save(sink, kind, **options)  # type: ignore[arg-type]
    return sink.getvalue()


def pixels(content: bytes, *, size: int = 8, channels: int = 3) -> np.ndarray:
    return np.frombuffer(decoded(content, size, channels).pixels, np.uint8).reshape(size, size, channels)


RED = Image.new("RGB", (20, 30), (200, 0, 0))


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "I;16"])
@pytest.mark.parametrize("channels", [1, 3])
def test_every_kind_of_pixels_comes_out_in_the_channels_asked_for(mode: str, channels: int) -> None:
    white = Image.new("L", (9, 7), 255)
    gray = Image.fromarray(np.full((7, 9), 65535, np.uint16)) if mode == "I;16" else white.convert(mode)
    assert (pixels(saved(gray, "TIFF"), channels=channels) == 255).all()


def test_sixteen_bits_of_gray_are_read_from_a_portable_graymap_too() -> None:
    gray = np.full((7, 9), 0x8000, ">u2")
    assert (pixels(b"P5 9 7 65535\n" + gray.tobytes(), channels=1) == 0x80).all()


@pytest.mark.parametrize("mode", ["F", "I"])
def test_pixels_of_which_nobody_knows_what_is_white_are_refused(mode: str) -> None:
    with pytest.raises(Unreadable, match="which of its numbers is white"):
        decoded(saved(Image.new(mode, (8, 8), 255), "TIFF"), 8, 1)


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "BMP", "GIF", "WEBP", "TIFF"])
def test_every_format_is_read_and_what_it_was_is_known(kind: str) -> None:
    made = decoded(saved(RED, kind), 8, 3)
    assert (made.width, made.height) == (20, 30)
    assert np.abs(np.frombuffer(made.pixels, np.uint8).reshape(8, 8, 3).astype(int) - [200, 0, 0]).max() < 12


def test_a_photograph_is_turned_as_its_exif_says() -> None:
    left_half = Image.new("L", (8, 8))
    left_half.paste(255, (0, 0, 4, 8))
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned right by a quarter
    assert (pixels(saved(left_half, exif=exif), channels=1)[:4] == 255).all()


def test_the_middle_of_a_long_image_is_taken() -> None:
    wide = Image.new("L", (24, 8))
    wide.paste(255, (8, 0, 16, 8))
    assert (pixels(saved(wide), channels=1) == 255).all()


@pytest.mark.parametrize("content", [b"", b"<html>", saved(RED)[:40], saved(RED, "JPEG")[:300], b"%!PS-Adobe-3.0 EPSF"])
def test_what_is_no_whole_image_is_told_in_one_line(content: bytes) -> None:
    with pytest.raises(Unreadable) as caught:
        decoded(content, 8, 3)
    assert str(caught.value) and "\n" not in str(caught.value) and " at 0x" not in str(caught.value)


def test_pixels_that_fit_stay_as_they_are() -> None:
    image = np.arange(8 * 8 * 3, dtype=np.uint8).reshape(8, 8, 3)
    assert scaled(image, 8, 3).pixels == image.tobytes()
    assert len(scaled(image, 4, 1).pixels) == 16


@pytest.mark.parametrize("error", [DeadlineExceeded("over"), MemoryError()])
def test_what_is_not_the_images_fault_is_not_taken_for_a_broken_one(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(Image, "open", fails)
    with pytest.raises(type(error)):
        decoded(saved(RED), 8, 3)
