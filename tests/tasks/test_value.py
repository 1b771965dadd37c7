"""What an image costs a probe is what a run without the image gives, to the last digit."""

import csv
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest
from PIL import ExifTags, Image

from flows.cli import app
from storage import manifest
from storage.kinds import CHECKPOINT, EVALUATION, CheckpointURI
from storage.uri import Root
from tasks.learning import recipes
from tasks.planning import make_plan
from tests import committed
from tests.ingested import evaluated
from tests.tasks.test_next import CLASSES, photo
from tests.test_probe import command

WRONG = {f"train/{CLASSES[label]}/wrong {number}.png": (label + 1) % 3 for number, label in enumerate((0, 1, 2))}
"""Files whose label is wrong, and the right ones."""
COPIES = ("train/moss/wrong 0.png", "train/moss/wrong copy.png")


def write(path: Path, number: int, label: int) -> None:
    """A photo with camera and day."""
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[ExifTags.Base.Model] = ("Pixel 8", "EOS 5D")[number % 2]
    exif.get_ifd(ExifTags.IFD.Exif)[ExifTags.Base.DateTimeOriginal] = f"2026:05:0{1 + number % 3} 10:11:12"
    photo(number, label).save(path, exif=exif)


def run(folder: Path, root: Path) -> tuple[CheckpointURI, dict[str, float]]:
    """The model of a whole run, and its scores by their names in the command's document."""
    recipe = recipes.override(recipes.load("images-probe"), {"image_size": 64, "validation_fraction": 0.2})
    plan = make_plan.make_plan(storage=str(root), recipe=recipe, data=str(folder), workers=0)
    recorded = manifest.load(evaluated(plan)).statistics_of(EVALUATION)
    (epoch,) = manifest.load(plan.train.target).statistics_of(CHECKPOINT).history
    scores = {"metric": recorded.test_accuracy, "loss": recorded.test_loss, "validation": epoch.validation_accuracy}
    return plan.train.target, scores


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of two folders, cameras and three days."""
    place = tmp_path_factory.mktemp("value")
    for split, count in (("train", 24), ("test", 12)):
        for label, name in enumerate(CLASSES):
            for number in range(count):
                below = place / "photos" / split / name / ("", "south")[number % 2]
                write(below / f"{number}.png", 1000 * (split == "test") + 100 * label + number, label)
    for number, (file, label) in enumerate(WRONG.items()):
        write(place / "photos" / file, 2000 + number, label)
    shutil.copy(*(place / "photos" / file for file in COPIES))
    return place


@pytest.fixture(scope="module")
def now(place: Path) -> tuple[CheckpointURI, dict[str, float]]:
    return run(place / "photos", place / "root")


@pytest.fixture(scope="module")
def valued(place: Path, now: tuple[CheckpointURI, dict[str, float]]) -> dict[str, Any]:
    words = ("value", "--model", now[0], "--storage", str(place / "root"))
    return command(*words, "--count", "8", "--csv", str(place / "table.csv"))


def scores_without(place: Path, left_out: Collection[str], folder: Path) -> dict[str, float]:
    shutil.copytree(place / "photos", folder / "photos")
    for file in left_out:
        (folder / "photos" / file).unlink()
    return run(folder / "photos", place / "root")[1]


def is_same(row: Mapping[str, float], before: Mapping[str, float], after: Mapping[str, float]) -> bool:
    return (row["points"], row["loss"]) == (
        100 * (after["metric"] - before["metric"]),
        after["loss"] - before["loss"],
    )


def files_of(row: Mapping[str, Any]) -> set[str]:
    return {*COPIES} if row["file"] in COPIES else {row["file"]}


def test_value_is_what_a_run_without_the_image_gives_to_the_last_digit(
    place: Path, valued: dict[str, Any], tmp_path: Path
) -> None:
    rows, before = valued["image"], valued["before"]
    for number in (0, 7):
        after = scores_without(place, files_of(rows[number]), tmp_path / str(number))
        assert is_same(rows[number], before, after)
    harmful = set().union(*map(files_of, rows[: valued["harmful"]]))
    assert valued["without"] == scores_without(place, harmful, tmp_path / "harmful")
    assert valued["without"]["loss"] < before["loss"]


def test_wrong_labels_come_first(
    place: Path, now: tuple[CheckpointURI, dict[str, float]], valued: dict[str, Any]
) -> None:
    rows = valued["image"]
    assert valued["before"] == now[1] and valued["harmful"] >= 3
    assert len(set(WRONG) & set().union(*map(files_of, rows[:4]))) >= 2 and len(rows) == 8
    assert [row["loss"] for row in rows] == sorted(row["loss"] for row in rows)
    with (place / "table.csv").open(newline="") as table:
        assert [row["file"] for row in csv.DictReader(table)] == [row["file"] for row in rows]


def test_folders_cameras_and_days_are_left_out_as_a_whole(
    place: Path, now: tuple[CheckpointURI, dict[str, float]], tmp_path: Path
) -> None:
    names = {"folder": {"none below the class", "south"}, "camera": {"Pixel 8", "EOS 5D"}}
    names["day"] = {f"2026-05-0{number}" for number in (1, 2, 3)}
    documents = {by: command("value", "--storage", str(place / "root"), "--model", now[0], "--by", by) for by in names}
    assert {by: {row[by] for row in document[by]} for by, document in documents.items()} == names
    south = next(row for row in documents["folder"]["folder"] if row["folder"] == "south")
    files = [path.relative_to(place / "photos").as_posix() for path in place.glob("photos/train/*/south/*")]
    assert is_same(south, now[1], scores_without(place, files, tmp_path)) and south["images"] < len(files) == 36


def test_model_that_cannot_be_fitted_again_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = Root(str(tmp_path))
    prepared = committed.result(root, "prepared", "photos")
    embeddings = committed.result(root, "embeddings", "photos", prepared=prepared)
    lost = committed.result(root, "embeddings", "lost", prepared=prepared)
    says = {committed.result(root, "checkpoint", "tuned", prepared=prepared): "must be a probe"}
    for name, of_model, message in (("own", embeddings, "by their own mean"), ("lost", lost, "were deleted; run its")):
        checkpoint, parents = committed.place(root, "checkpoint", name), {"prepared": prepared, "embeddings": of_model}
        committed.commit(checkpoint, "checkpoint", parents=parents, recipe=recipes.load("images-probe").to_dict())
        says[checkpoint] = message
    shutil.rmtree(lost)
    for checkpoint, message in says.items():
        assert app.main(words=["value", "--storage", root, "--model", checkpoint]) == 2
        assert message in capsys.readouterr().err.splitlines()[-1]
