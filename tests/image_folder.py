"""A folder of photographs as users have them: mixed sizes and colours, odd names, some broken."""

import io
from pathlib import Path

import numpy as np
from PIL import Image

BROKEN = ("train/rote Äpfel/leer.png", "train/pears/cut off.jpg", "test/pears/no image.webp")
CLASSES = ("pears", "rote Äpfel", "卵")


def picture(number: int, label: int, *, gray: bool = False) -> Image.Image:
    """Stripes across, down or not at all, as `label` says, and some noise; of a size of its own."""
    draw = np.random.default_rng(number)
    height, width = 24 + number % 5 * 8, 24 + number % 3 * 16
    rows, columns = np.mgrid[0:height, 0:width]
    stripes = (rows // 4 % 2, columns // 4 % 2, np.ones_like(rows))[label] * 200
    image = np.clip(stripes[..., None] + draw.integers(0, 50, (height, width, 3)), 0, 255).astype(np.uint8)
    return Image.fromarray(image[..., 0] if gray else image)


def encoded(number: int, label: int, kind: str = "PNG") -> bytes:
    sink = io.BytesIO()
    picture(number, label).save(sink, kind)
    return sink.getvalue()


def write_folder(folder: Path, *, train: int = 24, test: int = 6) -> Path:
    """`train` and `test` good images of each class, but no 卵 in test; and the three of BROKEN."""
    kinds = ("photo {}.png", "photo {}.jpg", "bild-{}.JPEG", "Größe {}.bmp", "{}.gif", "{}.webp", "{}.tif")
    for split, count in (("train", train), ("test", test)):
        for label, name in enumerate(CLASSES):
            if (split, name) == ("test", "卵"):
                continue
            place = folder / split / name
            place.mkdir(parents=True)
            for number in range(count):
                path = place / kinds[number % len(kinds)].format(number)
                picture(1000 * (split == "test") + 100 * label + number, label, gray=number % 2 == 0).save(path)
    good = encoded(0, 0, "JPEG")
    for broken, content in zip(BROKEN, (b"", good[: len(good) // 2], b"<html>not found</html>"), strict=True):
        (folder / broken).write_bytes(content)
    (folder / "train" / "pears" / "Thumbs.db").write_bytes(b"of Windows")
    (folder / "train" / "pears" / "._photo 1.png").write_bytes(b"of macOS")
    return folder
