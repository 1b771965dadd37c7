"""The exported `preprocess.py` gives the pixels of training for every kind of photo."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tasks.exporting import card
from tasks.learning import decode
from tests.image_folder import picture
from tests.learning.test_decode import METADATA, drawing, gray, saved, with_metadata

_NOISE = np.random.default_rng(0).integers(0, 256, (731, 574, 3), dtype=np.uint8)
_TURNED = Image.Exif()
_TURNED[0x0112] = 6
_MODES = ("1", "L", "P", "CMYK", "RGBA", "I;16")
_FRAMES = {"save_all": True, "append_images": [picture(2, 1).resize((40, 40))]}
PHOTOS = {
    **{kind: saved(picture(7, 1), kind) for kind in ("PNG", "JPEG", "BMP", "GIF", "WEBP", "AVIF", "TIFF", "PPM")},
    **{f"{mode} TIFF": saved(picture(8, 1).convert(mode), "TIFF", exif=_TURNED) for mode in _MODES},
    "large JPEG": saved(Image.fromarray(_NOISE), "JPEG", quality=90),
    "large progressive JPEG": saved(Image.fromarray(_NOISE), "JPEG", progressive=True),
    "large turned CMYK JPEG": saved(Image.fromarray(_NOISE).convert("CMYK"), "JPEG", exif=_TURNED),
    "large gray JPEG": saved(Image.fromarray(_NOISE[..., 0]), "JPEG"),
    **{f"PNG with {name.decode()}": with_metadata(name) for name in METADATA},
    "turned PNG": saved(picture(7, 0), exif=_TURNED),
    "JPEG with a preview": saved(Image.fromarray(_NOISE), "MPO", save_all=True, append_images=[picture(2, 1)]),
    "several frames": saved(picture(7, 1).resize((40, 40)), "GIF", **_FRAMES),
    **{f"transparent {mode}": saved(drawing(mode)) for mode in ("RGBA", "LA", "P")},
    **{f"16-bit gray of {bits}": saved(Image.fromarray(gray(2**bits - 1))) for bits in (8, 10, 12, 14, 16)},
}


def preprocess(channels: int) -> Callable[[Path], np.ndarray]:
    names: dict[str, Callable[[Path], np.ndarray]] = {}
    exec(card.preprocess((24, 24, channels)) or "", names)
    return names["preprocess"]


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("kind", PHOTOS)
def test_every_kind_of_photo_gives_the_pixels_of_training(kind: str, channels: int, tmp_path: Path) -> None:
    expected = np.frombuffer(decode.decoded(PHOTOS[kind], 24, channels).pixels, np.uint8)
    (tmp_path / "photo").write_bytes(PHOTOS[kind])
    actual = preprocess(channels)(tmp_path / "photo")
    assert actual.shape == (1, 24, 24, channels) and actual.dtype == np.uint8
    assert np.array_equal(actual.reshape(-1), expected)


def test_size_is_the_models_and_images_of_other_channels_than_photos_have_no_preprocessing() -> None:
    assert 'MODE, SIZE = "RGB", (32, 24)\n' in (card.preprocess((24, 32, 3)) or ""), "width first, as Pillow has it"
    assert card.preprocess((8, 8, 4)) is None
