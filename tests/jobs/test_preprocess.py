"""Preprocess excludes, counts and lists bad rows, and refuses unusable data sets."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from storage import files, manifest, tables
from storage.kinds import PREPARED, DatasetURI
from storage.manifest import Manifest
from storage.statistics import Contradictions, Overlap
from storage.uri import Root
from tasks.jobs.local_data import LocalData
from tasks.jobs.preprocess import job as preprocess
from tasks.jobs.preprocess.job import exact_sums
from tasks.jobs.spec import JobSpec
from tasks.learning import images, training_state
from tasks.learning.recipes import Split
from tasks.stages import Preprocess
from tests import committed
from tests.jobs import raw
from tests.learning.training import same

CLASSES = ("cat", "dog")
COLUMNS = images.schema((2, 2, 1), CLASSES)


def rows(start: int, count: int, **changes: dict[int, Any]) -> pa.Table:
    """Rows with ids from 0, cats and dogs in turn, each an image of its own from number `start` on.

    `changes` gives columns other values in some rows.
    """
    columns: dict[str, list[Any]] = {
        "id": list(range(count)),
        "image": [number.to_bytes(4, "big") for number in range(start, start + count)],
        "label": [number % 2 for number in range(count)],
    }
    for name, values in changes.items():
        for row, value in values.items():
            columns[name][row] = value
    return pa.table(columns, schema=COLUMNS)


def prepare(
    folder: Path, train: pa.Table, test: pa.Table, *, limit: float = 0.2, is_user_images: bool = False
) -> Manifest:
    """What the job makes of a raw dataset with these rows."""
    raw = DatasetURI(f"{folder}/datasets/raw/rows-0123456789ab")
    listed = [
        tables.write_part(raw, table.slice(start, length), split=split, index=index)
        for split, table in (("train", train), ("test", test))
        for index, (start, length) in enumerate([(0, 3), (3, len(table) - 3)])
        if len(table)
    ]
    made_from = {"listing": "rows"} if is_user_images else {}
    committed.commit(raw, "raw", listed, parameters=made_from, schema=tables.describe(COLUMNS))
    stage = Preprocess(raw=raw, split=Split(validation_fraction=0.2, max_quarantined=limit))
    preprocess.run(JobSpec(stage=stage), LocalData())
    return manifest.load(stage.target)


def uri_of(folder: Path) -> DatasetURI:
    """The only prepared dataset below `folder`."""
    (place,) = (folder / "datasets/prepared").iterdir()
    return DatasetURI(str(place))


def test_sums_of_pixels_are_exact() -> None:
    pixels = np.random.default_rng(0).integers(200, 256, (3000, 32, 32, 3), dtype=np.uint8)
    sums, squares = exact_sums(pixels)
    channels = pixels.astype(object).reshape(-1, 3)
    assert sums.tolist() == channels.sum(0).tolist() and squares.tolist() == (channels**2).sum(0).tolist()


BAD_ROWS: dict[str, dict[int, Any]] = {"label": {7: None, 8: 2, 9: -1}, "image": {10: None}}
REASONS = {"label is missing": 1, "label is not in 0..1": 2, "image could not be read": 1}


def test_unusable_rows_are_left_out_counted_by_reason_and_listed_and_too_many_are_refused(tmp_path: Path) -> None:
    train, test = rows(0, 40, **BAD_ROWS), rows(100, 10)
    with pytest.raises(ValueError, match=r"4 of 50 raw rows .*label is missing: 1.*max_quarantined=0.07 .*--set"):
        prepare(tmp_path, train, test, limit=0.07)
    assert not (tmp_path / "datasets/prepared").exists()
    assert prepare(tmp_path, train, test).statistics_of(PREPARED).quarantined == REASONS
    target = uri_of(tmp_path)
    listed = tables.read_split(target, "quarantine").to_pandas()
    assert sorted(listed["row"]) == list(range(7, 11))
    assert list(listed.columns) == ["row", "id", "label", "reason", "source"]
    kept = [row["id"] for split in ("train", "validation") for row in tables.read_split(target, split).to_pylist()]
    assert sorted(kept) == [*range(7), *range(11, 40)]


def test_test_rows_that_are_also_in_train_are_reported_and_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepared = prepare(tmp_path, rows(0, 40), rows(16, 50))  # 24 of its images are those of rows 16 to 39
    assert prepared.statistics_of(PREPARED).test_rows_in_train == Overlap(count=24, ids=tuple(range(20)))
    assert prepared.num_rows("test") == 50
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if "WARNING" in line]
    assert "24 test rows also in train or validation" in warning


def test_images_in_two_classes_are_counted_named_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cat, dog = (number.to_bytes(4, "big") for number in (2, 101))
    train, test = rows(0, 40, image={5: cat, 8: cat}), rows(100, 10, image={3: cat, 4: dog})
    prepared = prepare(tmp_path, train, test)
    assert prepared.statistics_of(PREPARED).images_in_two_classes == Contradictions(
        count=2, rows=6, named=("test id 1 (dog), test id 4 (cat)", "test id 3 (dog), train id 2 (cat)")
    )
    assert sum(file.rows or 0 for file in prepared.files) == 50
    (warning,) = [line for line in capsys.readouterr().out.splitlines() if "more than one class" in line]
    assert warning.startswith("WARNING: 2 images in more than one class, on 6 rows: every model is wrong about some of")
    assert warning.endswith(": test id 1 (dog), test id 4 (cat), test id 3 (dog), train id 2 (cat)")


@pytest.mark.parametrize("is_user_images", [True, False])
def test_of_ones_own_test_images_each_counts_once_in_its_class(tmp_path: Path, *, is_user_images: bool) -> None:
    cat, dog, other = (number.to_bytes(4, "big") for number in (102, 105, 2))
    train = rows(0, 40, image={8: other, 11: dog, 13: dog})
    test = rows(100, 10, image={4: cat, 6: cat, 7: dog, 8: dog})
    prepared = prepare(tmp_path, train, test, limit=0, is_user_images=is_user_images)
    uri = uri_of(tmp_path)
    left_out = [4, 6, 7] if is_user_images else []  # but not row 8, the same image in another class
    assert tables.read_split(uri, "test")["id"].to_pylist() == [id_ for id_ in range(10) if id_ not in left_out]
    assert prepared.statistics_of(PREPARED).quarantined == (
        {"copy of another test row of its class": 3} if is_user_images else {}
    )
    if is_user_images:
        assert tables.read_split(uri, "quarantine")["id"].to_pylist() == left_out


@pytest.mark.parametrize("empty", ["train", "test"])
def test_split_without_rows_is_refused_by_name(tmp_path: Path, empty: str) -> None:
    train, test = rows(0, 0 if empty == "train" else 40), rows(100, 0 if empty == "test" else 10)
    with pytest.raises(ValueError, match=f"the raw dataset has no rows in split '{empty}'"):
        prepare(tmp_path, train, test)


@pytest.mark.usefixtures("more_models")
def test_other_test_rows_or_none_that_can_be_read_give_the_same_rows_statistics_and_weights(tmp_path: Path) -> None:
    weights, rows, statistics = [], [], []
    for number in (30, 7):
        root = Root(str(tmp_path / str(number)))
        prepare = raw.to_prepare(root, raw.write(root, shape=(12, 12, 1), train=202, test=number))
        raw.run(prepare)
        prepared = manifest.load(prepare.target)
        rows.append([file.sha256 for split in ("train", "validation") for file in prepared.split(split)])
        statistics.append([prepared.statistics_of(PREPARED).mean, prepared.statistics_of(PREPARED).std])
        for file in prepared.split("test"):
            files.remove(prepare.target.child(file.path))
        train = raw.to_train(root, prepare.target, epochs=2)
        raw.run(train)
        weights.append(training_state.load_model(train.target)[0].state_dict())
    assert rows[0] == rows[1] and statistics[0] == statistics[1]
    assert same(*weights)
