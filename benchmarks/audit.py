"""How many planted wrong labels does the audit find, and in what time?

`python -m benchmarks.audit FOLDER... [--share 0.03] [--draws N] [--photos N]` prints a row of the table of
docs/image-problems.md for each folder, which has a folder of photos per class, and each draw: a share of the photos
gets another label, then `data-to-model audit` runs without Ray. All draws share a storage root, so only the first one
embeds. `first` is how many of the planted labels are among as many of the first suspects, `twice` among twice as many.
"""

import argparse
import contextlib
import csv
import io
import random
import tempfile
import time
from pathlib import Path

from flows.cli import app


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit")
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("--share", type=float, default=0.03, help="share of the labels that is changed")
    parser.add_argument("--draws", type=int, default=2)
    parser.add_argument("--photos", type=int, default=2000, help="photos that are drawn of each folder, at most")
    given = parser.parse_args()
    print("| photos | draw | planted | sure | precision | recall | first | twice | seconds |\n|---|" + "---:|" * 8)
    for folder in given.folders:
        photos = sorted(path for path in folder.glob("*/*") if path.is_file())
        photos = random.Random(0).sample(photos, min(given.photos, len(photos)))
        with tempfile.TemporaryDirectory() as place:
            for draw in range(given.draws):
                cells = measured(photos, Path(place), share=given.share, draw=draw)
                print(f"| {len(photos):,} of {folder.name} | {draw + 1} | {' | '.join(cells)} |", flush=True)


def measured(photos: list[Path], place: Path, *, share: float, draw: int) -> list[str]:
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
    return [*map(str, (count, len(sure))), precision, f"{hits / count:.2f}", *map(str, early), f"{seconds:.0f}"]


if __name__ == "__main__":
    main()
