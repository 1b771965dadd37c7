"""How often does `predict` report drift that is none, and how often some that is there?

`python -m benchmarks.drift FOLDER OTHER... [--draws N] [--photos N]` prints a table of docs/internals/photos.md. Half
of the photos of FOLDER, a folder per class, are a probe's training photos. Of the others 100 are drawn as new photos,
and the rest are the test rows that they are compared with: first as they are, then darker, blurred, and so on, and then
photos of each OTHER folder, a folder per class.
"""

import argparse
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image, ImageEnhance, ImageFilter

from benchmarks.unknown_things import distances, embedder, photos_of, read
from tasks.comparing import drift
from tasks.learning import probe

_NEW = 100
_CHANGES: dict[str, Callable[[Image.Image], Image.Image]] = {
    "as they are": lambda photo: photo,
    "half as bright": lambda photo: ImageEnhance.Brightness(photo).enhance(0.5),
    "blurred, radius 1": lambda photo: photo.filter(ImageFilter.GaussianBlur(1)),
    "blurred, radius 2": lambda photo: photo.filter(ImageFilter.GaussianBlur(2)),
    "gray": lambda photo: photo.convert("L").convert("RGB"),
    "upside down": lambda photo: photo.rotate(180),
}


def main() -> None:
    """Print a row for each kind of new photos."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.drift")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--draws", type=int, default=1000)
    parser.add_argument("--photos", type=int, default=800, help="photos that are drawn of each folder")
    options, backbone = parser.parse_args(), embedder()
    paths = photos_of(options.folders[0], options.photos)
    labels = np.unique([path.parent.name for path in paths], return_inverse=True)[1]
    pixels, half = read(paths), len(paths) // 2
    known = backbone.embeddings(pixels[:half])
    fitted = probe.fit(known, labels[:half])

    def rows(pixels: np.ndarray) -> pd.DataFrame:
        vectors = backbone.embeddings(pixels)
        return pd.DataFrame(
            {"prediction": fitted.logits(vectors).argmax(1), "distance": distances(vectors, known).round(4)}
        )

    photos, draw = [Image.fromarray(photo) for photo in pixels[half:]], np.random.default_rng(0)
    kinds = {name: rows(np.array([*map(np.asarray, map(change, photos))])) for name, change in _CHANGES.items()}
    test = kinds["as they are"]
    kinds |= {other.name: rows(read(photos_of(other, half))) for other in options.folders[1:]}
    print(f"| new photos of {options.folders[0].name} | drift | by distance | by classes |\n|---|---:|---:|---:|")
    for name, new in kinds.items():
        alarms = []
        for _ in range(options.draws if new is test else options.draws // 10):
            order = draw.permutation(len(test))
            one = new.iloc[order[:_NEW]] if len(new) == len(test) else new.sample(_NEW, random_state=draw)
            result = drift.compare(one, test.iloc[order[_NEW:]])
            alarms.append(
                [result["is_drift"], *(result[p] <= drift.FALSE_ALARMS / 2 for p in ("p_distance", "p_classes"))]
            )
        print(f"| {name} | {' | '.join(f'{share:.1%}' for share in np.mean(alarms, 0))} |", flush=True)


if __name__ == "__main__":
    main()
