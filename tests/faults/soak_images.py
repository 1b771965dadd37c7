"""Images of the soak: they grow, some are labeled wrong first, and from some time on new ones are dark."""

import io
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

CLASSES = ("across", "down", "plain")


def encoded(number: int, label: int, *, is_dark: bool) -> bytes:
    """A PNG of 40 x 40 pixels: a field of colors, and stripes across, down or none, as `label` says."""
    draw = np.random.default_rng(number)
    colors = Image.fromarray(draw.integers(40, 216, (4, 4, 3), dtype=np.uint8))
    rows, columns = np.mgrid[0:40, 0:40] + draw.integers(0, 10)
    stripes = (rows // 5 % 2, columns // 5 % 2, np.full(rows.shape, 0.5))[label] * 70 - 35
    pixels = np.asarray(colors.resize((40, 40), Image.Resampling.BICUBIC)) + stripes[..., None]
    pixels = (pixels + draw.normal(0, 25, pixels.shape)) * (0.3 if is_dark else 1)
    sink = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(sink, "PNG")
    return sink.getvalue()


class Photographs:
    """A folder of images without labels, and one of the same images with labels, which come two steps later."""

    def __init__(self, folder: Path) -> None:
        self.labeled, self.arrivals, self._new = folder / "photos", folder / "arrivals", folder / "new"
        self._next = 10**6
        self._unlabeled: list[list[Path]] = []
        """Folders of the latest steps, one a class."""
        self._wrong: list[tuple[Path, Path]] = []
        """Where images with a wrong label lie, and where they belong."""
        for place in (self.arrivals, *(self.labeled / name / f"{name}-later" for name in CLASSES)):
            place.mkdir(parents=True)
        self.grow(60, is_dark=False)
        self._label()

    def grow(self, count: int = 10, *, is_dark: bool) -> None:
        """Add `count` images of each class, and the labels of an earlier step; a folder appears when it is complete."""
        step = []
        for label, name in enumerate(CLASSES):
            self._new.mkdir()
            for number in range(self._next, self._next + count):
                (self._new / f"{number}.png").write_bytes(encoded(number, label, is_dark=is_dark))
            step.append(self._new.rename(self.arrivals / f"{name}-{self._next}"))
            self._next += count
        self._unlabeled.append(step)
        if len(self._unlabeled) > 2:
            self._label()

    def _label(self) -> None:
        """Label the oldest step, one image of each class wrong; correct those of the step before."""
        for path, right in self._wrong:
            path.rename(right)
        self._wrong = []
        for label, arrived in enumerate(self._unlabeled.pop(0)):
            shutil.copytree(arrived, self._new)
            folder, other = self._new.rename(self.labeled / CLASSES[label] / arrived.name), CLASSES[label - 1]
            right = min(folder.iterdir())
            self._wrong.append((self.labeled / other / f"{other}-later" / right.name, right))
            right.rename(self._wrong[-1][0])

    def files(self) -> set[str]:
        """The paths of the labeled images below their folder."""
        return {str(path.relative_to(self.labeled)) for path in self.labeled.rglob("*.png")}
