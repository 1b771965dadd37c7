"""How many planted wrong labels does the audit find, and in what time?

`python -m benchmarks.audit FOLDER... [--share 0.03] [--draws N] [--photos N]` prints a row of the table of
docs/image-problems.md for each folder, which has a folder of photos per class, and each draw: a share of the photos
gets another label, then `data-to-model audit` runs without Ray. All draws share a storage root, so only the first one
embeds. `first` is how many of the planted labels are among as many of the first suspects, `twice` among twice as many.
With `--value` a probe is trained, too, and three more columns count the planted training images: all, those among the
worst 5% by the step that `data-to-model value` ranks by, and those among as many of the first training suspects.
"""

import argparse
import contextlib
import csv
import io
import json
import random
import tempfile
import time
from collections.abc import Collection
from pathlib import Path

import numpy as np

from flows.cli import app
from storage.kinds import CheckpointURI
from tasks.comparing import value


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--share", type=float, default=0.03, help="share of the labels that is changed")
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--photos", type=int, default=2000, help="photos that are drawn of each folder, at most")
    parser.add_argument("--value", action="store_true", help="also rank the training images of a probe")
    options = parser.parse_args()
    names = ["draw", "planted", "sure", "precision", "recall", "first", "twice", "seconds"]
    names += ["in training", "by value", "by audit"] * options.value
    print(f"| photos | {' | '.join(names)} |\n|---|{'---:|' * len(names)}", flush=True)
    for folder in options.folders:
        photos = sorted(path for path in folder.glob("*/*") if path.is_file())
        photos = random.Random(0).sample(photos, min(options.photos, len(photos)))
        with tempfile.TemporaryDirectory() as place:
            for draw in range(options.draws):
                cells = cells_of_audit(photos, Path(place), share=options.share, draw=draw, ranks_value=options.value)
                print(f"| {len(photos):,} of {folder.name} | {draw + 1} | {' | '.join(cells)} |", flush=True)


def cells_of_audit(photos: list[Path], place: Path, *, share: float, draw: int, ranks_value: bool) -> list[str]:
    """Return the cells of an audit of `photos`, of which a share has wrong labels."""
    drawn, labels = random.Random(draw + 1), sorted({photo.parent.name for photo in photos})
    planted, folder = set[str](), place / f"photos-{draw}"
    wrong = set(drawn.sample(range(len(photos)), round(share * len(photos))))
    for number, photo in enumerate(photos):
        others = [label for label in labels if label != photo.parent.name]
        label = drawn.choice(others) if number in wrong else photo.parent.name
        link = folder / label / f"{number}{photo.suffix}"
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(photo.resolve())
        planted |= {f"{label}/{link.name}"} if number in wrong else set()
    begun, table = time.monotonic(), place / f"suspects-{draw}.csv"
    with contextlib.redirect_stdout(io.StringIO()):
        words = ["audit", str(folder), "--storage", f"{place}/root", "--workers", "0", "--csv", str(table)]
        assert app.main(words=words) == 0
    seconds = time.monotonic() - begun
    with table.open(newline="") as file:
        suspects = list(csv.DictReader(file))
    files = [suspect["file"] for suspect in suspects]
    sure = [suspect["file"] for suspect in suspects if suspect["sure"] in ("True", "true", "yes", "1")]
    hits, count = len(planted & set(sure)), len(planted)
    early = [len(planted & set(files[: times * count])) for times in (1, 2)]
    precision = f"{hits / len(sure):.2f}" if sure else "-"
    ranked = cells_of_value(folder, place, planted, files) if ranks_value else []
    return [
        *map(str, (count, len(sure))),
        precision,
        f"{hits / count:.2f}",
        *map(str, early),
        f"{seconds:.0f}",
        *ranked,
    ]


def cells_of_value(folder: Path, place: Path, planted: Collection[str], suspects: list[str]) -> list[str]:
    """Return the cells of a probe's training images: planted ones, and those among the worst 5% by value and audit."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        words = ["run", "--recipe", "images-probe", "--data", str(folder), "--storage", f"{place}/root"]
        assert app.main(words=[*words, "--workers", "0", "--json"]) == 0
    retraining = value.Retraining(CheckpointURI(json.loads(output.getvalue())["uris"]["checkpoint"]))
    group_of_row, groups = value.groups_of(retraining.train, "image")
    influence = retraining.influence(retraining.fit(np.full(len(group_of_row), True), threads=2))
    order = np.argsort(np.bincount(group_of_row, weights=influence), kind="stable")
    count, trained = len(groups) // 20, set(groups["file"])
    worst = (groups["file"].iloc[order[:count]], [file for file in suspects if file in trained][:count])
    return [str(len(trained.intersection(planted))), *(str(len({*files}.intersection(planted))) for files in worst)]


if __name__ == "__main__":
    main()
