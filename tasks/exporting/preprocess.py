"""Preprocessing of a photo for the exported model, exactly as in its training; needs only Pillow and NumPy."""

import contextlib
import io
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, PngImagePlugin

MODE, SIZE = "RGB", (64, 64)


def preprocess(file: str) -> np.ndarray:
    """Return the photo in `file`, upright, on white, its centre: uint8, (1, height, width, channels)."""
    PngImagePlugin.MAX_TEXT_CHUNK = 2**25  # Pillow refuses to read the pixels beside a text of 1 MiB
    with Image.open(io.BytesIO(Path(file).read_bytes())) as opened:  # by its path, Pillow turns some TIFFs wrongly
        opened.draft(MODE, (2 * SIZE[0], 2 * SIZE[1]))  # a large JPEG is decoded at a smaller scale
        with contextlib.suppress(SyntaxError):  # broken metadata of a good image: from now on Pillow finds none
            opened.getexif()
        image = ImageOps.exif_transpose(opened)
    if image.mode.startswith("I;16"):  # gray of 16 bits: keep the upper 8 of those in use
        values = np.asarray(image)
        bits = next(n for n in (8, 10, 12, 14, 16) if values.max(initial=0) < 2**n)
        image = Image.fromarray((values >> (bits - 8)).astype(np.uint8))
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA")).convert("RGB")
    image = ImageOps.fit(image.convert(MODE), SIZE, method=Image.Resampling.BILINEAR)
    return np.array(image).reshape(1, SIZE[1], SIZE[0], -1)
