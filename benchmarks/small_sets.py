"""Which recipe gives the better model of a few photos, and in what time?

`python -m benchmarks.small_sets FOLDER... [--recipes NAME[,field=value]... --photos N... --sizes PX... --seeds N]`
prints a row of the table of docs/internals/photos.md for each folder, which has a folder of photos per class, and each
recipe: the mean over the seeds, each of which draws other photos and splits and trains in another order. A run is the
product's own, without Ray; its seconds are the CPU time of the whole command but the import of the libraries.
"""

import argparse
import contextlib
import io
import json
import os
import random
import tempfile
from pathlib import Path
from statistics import mean

from flows.cli import app
from storage import manifest
from storage.kinds import EVALUATION
from storage.uri import URI

_TEST = 0.3
"""Share of the photos that are test rows."""
_RECIPES = ("images-finetune", "images-finetune,ensemble=none", "images-probe")
_HEADER = ("photos", "classes", "recipe", "px", "accuracy", "balanced", "loss", "calibration error", "CPU s")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_sets")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--recipes", nargs="+", default=_RECIPES)
    parser.add_argument("--photos", nargs="+", type=int, default=[300], help="photos that are drawn of each folder")
    parser.add_argument("--sizes", nargs="+", type=int, default=[128])
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    print(f"| set | {' | '.join(_HEADER)} |\n|---|{'---:|' * len(_HEADER)}", flush=True)
    for folder in options.folders:
        for count in options.photos:
            for size in options.sizes:
                for recipe in options.recipes:
                    rows = [measured(folder, count, recipe, size, seed) for seed in range(options.seeds)]
                    values = [f"{mean(column):.3f}" for column in zip(*(row[:-1] for row in rows), strict=True)]
                    num_classes = sum(place.is_dir() for place in folder.iterdir())
                    seconds = f"{mean(row[-1] for row in rows):.0f}"
                    cells = [folder.name, count, num_classes, recipe, size, *values, seconds]
                    print(f"| {' | '.join(map(str, cells))} |", flush=True)


def measured(folder: Path, count: int, recipe: str, size: int, seed: int) -> tuple[float, float, float, float, float]:
    """Return accuracy, balanced accuracy, loss, calibration error and CPU seconds of a run on `count` photos."""
    name, *changes = recipe.split(",")
    photos = sorted(path for path in folder.glob("*/*") if path.is_file())
    with tempfile.TemporaryDirectory() as place:
        for photo in random.Random(seed).sample(photos, min(count, len(photos))):
            link = Path(place, "photos", photo.parent.name, photo.name)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(photo.resolve())
        words = ["run", "--recipe", name, "--data", f"{place}/photos", "--storage", f"{place}/root", "--workers", "0"]
        settings = {"image_size": size, "test_fraction": _TEST, "split_seed": seed}
        settings |= {} if name == "images-probe" else {"seed": seed}
        changes += [f"{field}={value}" for field, value in settings.items()]
        words += [word for change in changes for word in ("--set", change)]
        output, begun = io.StringIO(), sum(os.times()[:4])
        with contextlib.redirect_stdout(output):
            assert app.main(words=[*words, "--json"]) == 0
        seconds = sum(os.times()[:4]) - begun
        metrics = manifest.load(URI(json.loads(output.getvalue())["uris"]["evaluation"])).statistics_of(EVALUATION)
        return (
            metrics.test_accuracy,
            metrics.balanced_accuracy,
            metrics.test_loss,
            metrics.expected_calibration_error,
            seconds,
        )


if __name__ == "__main__":
    main()
