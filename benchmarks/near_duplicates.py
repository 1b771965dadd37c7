"""Which copies of photos are found as near duplicates, and how many other pairs?

`python -m benchmarks.near_duplicates FOLDER... [--photos N]` prints a table of docs/internals/photos.md: for each kind
of copy the share of N photos of the folders, at any depth, whose copy is found beside all others; and the number of
other pairs that are named. Pairs among the photos themselves come first: look at them, they may be real.
"""

import argparse
import functools
import io
import itertools
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from benchmarks.unknown_things import SIZE, embedder, photos_of
from storage import process
from tasks.images.embedding_rows import directions
from tasks.learning import decode, near_duplicates

Edit = Callable[[Image.Image, random.Random], Image.Image]
_LARGEST = 400
"""Pixels of the longer side of a photo before it is copied."""
_SEEN = 0.8
"""Share of each side of a photo that a camera sees, before and after it moved."""


def _window(image: Image.Image, share: float, across: float, down: float) -> Image.Image:
    """Return the part of an image with this share of each side, its middle moved by shares of the sides."""
    width, height = image.size
    left, upper = ((1 - share) / 2 + across) * width, ((1 - share) / 2 + down) * height
    return image.crop((round(left), round(upper), round(left + share * width), round(upper + share * height)))


def _cropped(image: Image.Image, draw: random.Random) -> Image.Image:
    return _window(image, 0.8, draw.uniform(-0.1, 0.1), draw.uniform(-0.1, 0.1))


def _moved(share: float) -> Edit:
    def beside(image: Image.Image, draw: random.Random) -> Image.Image:
        return _window(image, _SEEN, *(draw.choice((-1, 1)) * share * _SEEN for _ in range(2)))

    return beside


def _burst(image: Image.Image, draw: random.Random) -> Image.Image:
    turned = _moved(0.05)(image.rotate(draw.uniform(-2, 2), Image.Resampling.BICUBIC), draw)
    pixels = np.asarray(ImageEnhance.Brightness(turned).enhance(draw.uniform(0.9, 1.12)))
    noise = np.random.default_rng(draw.randrange(2**32)).normal(0, 4, pixels.shape)
    return Image.fromarray((pixels + noise).clip(0, 255).astype(np.uint8))


def _scaled(image: Image.Image, share: float) -> Image.Image:
    return image.resize([max(1, round(share * side)) for side in image.size])


COPIES: dict[str, tuple[str, Edit]] = {
    "JPEG of quality 60": ("JPEG", lambda image, draw: image),
    "half the size": ("JPEG", lambda image, draw: _scaled(image, 0.5)),
    "WebP, 80 % of the size": ("WEBP", lambda image, draw: _scaled(image, 0.8)),
    "gray": ("JPEG", lambda image, draw: ImageOps.grayscale(image)),
    "mirrored": ("JPEG", lambda image, draw: ImageOps.mirror(image)),
    "cropped to 80 % of each side": ("JPEG", _cropped),
    "brighter by 20 %": ("JPEG", lambda image, draw: ImageEnhance.Brightness(image).enhance(1.2)),
    "brighter by 40 %": ("JPEG", lambda image, draw: ImageEnhance.Brightness(image).enhance(1.4)),
    "turned by 90 degrees": ("JPEG", lambda image, draw: image.rotate(draw.choice((90, 270)), expand=True)),
    "camera moved by 3 %": ("JPEG", _moved(0.03)),
    "camera moved by 10 %": ("JPEG", _moved(0.1)),
    "burst: moved by 5 %, turned, other light, noise": ("JPEG", _burst),
}
"""Format of the file, and edit, by name."""
_OF_MOVED = ("camera", "burst")
"""Starts of the names of copies whose other image is a part of the photo, too."""


def _pixels(image: Image.Image, kind: str) -> np.ndarray:
    """Return an image as a run stores it after it was saved, uint8 (1, SIZE, SIZE, 3)."""
    sink = io.BytesIO()
    image.save(sink, kind, quality=60)
    return np.frombuffer(decode.decoded(sink.getvalue(), SIZE, 3).pixels, np.uint8).reshape(1, SIZE, SIZE, 3)


def _opened(path: Path) -> Image.Image:
    image = ImageOps.exif_transpose(Image.open(path)).convert("RGB")
    image.thumbnail((_LARGEST, _LARGEST))
    return image


def _copied(path: Path, *, kind: str, edit: Edit) -> np.ndarray:
    return _pixels(edit(_opened(path), random.Random(path.name)), kind)


def measure(paths: list[Path]) -> None:
    """Print the pairs among the photos, and the table."""
    embed = embedder()

    def pairs_of(pixels: np.ndarray) -> set[tuple[int, int]]:
        vectors = directions(embed.embeddings(pixels))
        pairs, _ = near_duplicates.find_pairs(vectors, near_duplicates.shrink(pixels), threads=1)
        return set(map(tuple, pairs.tolist()))

    count = len(paths)
    photos = np.concatenate(list(process.in_threads(lambda path: _pixels(_opened(path), "PNG"), paths, threads=2)))
    own = pairs_of(photos)
    for first, second in sorted(own):
        print(f"{paths[first]} ~ {paths[second]}")
    print(f"\n{count} photos, {len(own)} pairs among them\n\n| copy | found | other pairs |\n|---|---:|---:|")
    for name, (kind, edit) in COPIES.items():
        copied = functools.partial(_copied, kind=kind, edit=edit)
        before = photos
        if name.startswith(_OF_MOVED):
            seen = functools.partial(_copied, kind=kind, edit=lambda image, draw: _window(image, _SEEN, 0, 0))
            before = np.concatenate(list(process.in_threads(seen, paths, threads=2)))
        found = pairs_of(np.concatenate([before, *process.in_threads(copied, paths, threads=2)]))
        copies = {pair for pair in found if pair[1] - pair[0] == count}
        others = {tuple(sorted((first % count, second % count))) for first, second in found - copies} - own
        print(f"| {name} | {100 * len(copies) / count:.1f} % | {len(others)} |", flush=True)


def main() -> None:
    """Draw the photos and measure."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.near_duplicates", description=__doc__)
    options.add_argument("folders", nargs="+", type=Path)
    options.add_argument("--photos", type=int, default=1000)
    arguments = options.parse_args()
    of_each = arguments.photos // len(arguments.folders)
    measure(list(itertools.chain.from_iterable(photos_of(folder, of_each) for folder in arguments.folders)))


if __name__ == "__main__":
    main()
