"""Near duplicates: which copies of a photo the pixels accept, and that nothing else passes for one."""

import io
from collections.abc import Callable, Mapping
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageEnhance, ImageFont, ImageOps

from tasks.learning import near_duplicates

SIDE = 160
PHOTO = Image.open(Path(matplotlib.get_data_path(), "sample_data", "grace_hopper.jpg")).convert("RGB")


def saved(image: Image.Image, kind: str = "JPEG") -> Image.Image:
    """The image as a file has it."""
    sink = io.BytesIO()
    image.save(sink, kind, quality=60)
    return Image.open(sink).convert("RGB")


def window(left: float, upper: float, *, side: float = SIDE) -> Image.Image:
    """A square of the photo."""
    return PHOTO.crop((round(left), round(upper), round(left + side), round(upper + side)))


def moved(share: float, *, turned: float = 0.0) -> Callable[[int, int], Image.Image]:
    """A window beside another one, by a share of its side; the camera may have turned by some degrees."""

    def beside(left: int, upper: int) -> Image.Image:
        step = share * SIDE
        whole = PHOTO.rotate(turned, Image.Resampling.BICUBIC, center=(left + SIDE / 2, upper + SIDE / 2))
        return whole.crop(
            (round(left + step), round(upper + step), round(left + step) + SIDE, round(upper + step) + SIDE)
        )

    return beside


COPIES: Mapping[str, Callable[[int, int], Image.Image]] = {
    "JPEG": lambda left, upper: saved(window(left, upper)),
    "half the size": lambda left, upper: saved(window(left, upper).resize((SIDE // 2, SIDE // 2))),
    "WebP": lambda left, upper: saved(window(left, upper), "WEBP"),
    "gray": lambda left, upper: window(left, upper).convert("L").convert("RGB"),
    "mirrored": lambda left, upper: ImageOps.mirror(window(left, upper)),
    "cropped to 80 %": lambda left, upper: window(left + 8, upper + 20, side=0.8 * SIDE),
    "brighter": lambda left, upper: ImageEnhance.Brightness(window(left, upper)).enhance(1.2),
    "turned by 90 degrees": lambda left, upper: window(left, upper).rotate(90),
    "moved by 3 %": moved(0.03),
    "moved by 10 %": moved(0.1),
    "burst": lambda left, upper: saved(ImageEnhance.Brightness(moved(0.05, turned=1.5)(left, upper)).enhance(0.9)),
}
PLACES = [(left, upper) for left in (20, 120, 220) for upper in (20, 150, 280)]


def pairs_of(images: list[Image.Image], directions: np.ndarray) -> set[tuple[int, int]]:
    """The near duplicates among images, by their embeddings."""
    pixels = np.stack([np.asarray(image.resize((128, 128))) for image in images])
    pairs, distances = near_duplicates.find_pairs(directions, near_duplicates.shrink(pixels), threads=2)
    assert (distances <= 0.15).all()
    return set(map(tuple, pairs.tolist()))


@pytest.mark.parametrize("copy", COPIES.values(), ids=COPIES)
def test_copies_of_photos_are_found_and_no_other_pairs(copy: Callable[[int, int], Image.Image]) -> None:
    images = [*(window(*place) for place in PLACES), *(copy(*place) for place in PLACES)]
    own = np.eye(len(PLACES), dtype=np.float32)
    pairs = pairs_of(images, np.concatenate([own, own]))
    assert pairs <= {(row, row + len(PLACES)) for row in range(len(PLACES))}
    assert len(pairs) >= len(PLACES) - 1


def test_size_of_blocks_changes_no_pair(monkeypatch: pytest.MonkeyPatch) -> None:
    images, own = [window(*place) for place in PLACES] * 3, np.eye(len(PLACES), dtype=np.float32)
    pairs = pairs_of(images, np.concatenate([own] * 3))
    monkeypatch.setattr(near_duplicates, "_COSINES", 1)
    assert pairs_of(images, np.concatenate([own] * 3)) == pairs and len(pairs) == 3 * len(PLACES)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_few_images_without_a_likely_pair_are_no_pairs(count: int) -> None:
    assert pairs_of([window(*place) for place in PLACES[:count]], np.eye(count, dtype=np.float32)) == set()


def page(number: int) -> Image.Image:
    """A page with lines of letters."""
    draw, image = np.random.default_rng(number), Image.new("RGB", (600, 600), "white")
    pen, font = ImageDraw.Draw(image), ImageFont.load_default(22)
    for line in range(20):
        pen.text((20, 20 + 28 * line), "".join(draw.choice([*"aeinorst  "], 60)), fill="black", font=font)
    return image


def solid(number: int) -> Image.Image:
    """One color with the noise of a camera."""
    draw = np.random.default_rng(number)
    noisy = draw.integers(30, 220, 3) + draw.normal(0, 4, (128, 128, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("make", [page, solid])
def test_pages_of_text_and_solid_colors_are_no_pairs_even_if_a_model_sees_no_difference(
    make: Callable[[int], Image.Image],
) -> None:
    images = [make(number) for number in range(30)]
    assert pairs_of(images, np.ones((30, 1), np.float32)) == set()
