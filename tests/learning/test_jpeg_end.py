"""JPEGs that end early are found, complete ones of any kind are not taken for such."""

import io
import itertools
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tasks.learning import decode
from tests.image_folder import picture

KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"optimize": True},
    {"progressive": True},
    {"quality": 95, "subsampling": 0},
    {"restart_marker_rows": 1},
)
"""Options of Pillow for the kinds of JPEG that are common."""
END = b"\xff\xd9"


def jpeg(image: Image.Image, **options: Any) -> bytes:
    sink = io.BytesIO()
    image.save(sink, "JPEG", **options)
    return sink.getvalue()


def noise(side: int = 64) -> Image.Image:
    """The most detailed image there is: padding with zeros is decoded as its last pixels."""
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (side, side, 3)).astype(np.uint8))


def photo(side: int = 256) -> Image.Image:
    """Soft shapes with a little noise, as of a camera."""
    rows, columns = np.mgrid[:side, :side]
    shapes = np.stack([127 + 100 * np.sin(columns / 30), 127 + 100 * np.cos(rows / 23), (rows + columns) / 2], -1)
    grain = np.random.default_rng(1).normal(0, 3, shapes.shape)
    return Image.fromarray(np.clip(shapes + grain, 0, 255).astype(np.uint8))


def is_truncated(content: bytes, size: int = 32, channels: int = 3) -> bool:
    try:
        decode.decoded(content, size, channels)
    except decode.Unreadable as error:
        assert str(error) == "truncated"
        return True
    return False


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_a_jpeg_whose_rest_is_padding_or_missing_is_truncated(options: dict[str, Any]) -> None:
    for image in (noise(), photo(), picture(3, 1), noise().convert("L"), noise().convert("CMYK")):
        content = jpeg(image, **options)
        for share, padding in itertools.product((0.4, 0.7, 0.9), (b"\0", b"\xff", b"\xaa")):
            start = content[: int(len(content) * share)]
            assert is_truncated(start + padding * (len(content) - len(start))), (share, padding)
            assert is_truncated(start + padding * 100_000), "a long tail"


@pytest.mark.parametrize("options", [one for one in KINDS if "progressive" not in one], ids=str)
def test_a_jpeg_with_an_end_after_half_of_its_pixels_is_truncated(options: dict[str, Any]) -> None:
    for image, size, channels in itertools.product((noise(), photo(), noise().convert("CMYK")), (16, 256), (1, 3)):
        content = jpeg(image, **options)
        assert is_truncated(content[: int(len(content) * 0.6)] + END, size, channels)


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_complete_jpegs_are_read_whatever_is_flat_and_whatever_follows_their_end(options: dict[str, Any]) -> None:
    for value, mode, sides in itertools.product((0, 127, 128, 255), ("L", "RGB", "CMYK"), ((64, 64), (57, 43))):
        image = noise().convert(mode).resize(sides)
        image.paste((value,) * len(image.getbands()) if mode != "L" else value, (0, 16, 64, 64))
        content = jpeg(image, **options)
        for after in (b"", bytes(5000), b"\xff" * 100, b"\r\n", jpeg(photo()), b"ftypmp42" + bytes(100)):
            assert not is_truncated(content + after), (value, mode)
        assert not is_truncated(content[: -len(END)] + b"\xff\xff" + END), "fill bytes before the end"
        assert not is_truncated(content, size=8, channels=1)


def test_a_preview_of_the_image_does_not_hide_that_its_end_is_missing() -> None:
    content = jpeg(noise())
    preview = b"\xff\xe1" + (2 + len(jpeg(picture(1, 0)))).to_bytes(2) + jpeg(picture(1, 0))
    with_preview = content[:2] + preview + content[2:]
    assert not is_truncated(with_preview)
    assert is_truncated(with_preview[: -len(content) // 3] + bytes(len(content) // 3))
