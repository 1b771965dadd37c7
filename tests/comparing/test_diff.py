"""What is different in two runs is named: in the data by file, in the recipe by field, in the answers by row."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from flows.cli import app
from storage import files, manifest, tables
from storage.kinds import CHECKPOINT, DatasetURI
from storage.manifest import Damaged
from storage.uri import URI, Root
from tasks.comparing.data import SORTS
from tasks.comparing.diff import diff
from tasks.comparing.results import Results
from tasks.images import image_facts
from tests import documented
from tests.comparing import runs
from tests.finished import Finished
from tests.image_folder import encoded

CLASSES = ("cat", "dog")


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """40 training and 10 test files of each class, no two alike."""
    for split, count in (("train", 40), ("test", 10)):
        for label, name in enumerate(CLASSES):
            folder = tmp_path / "photos" / split / name
            folder.mkdir(parents=True)
            for number in range(count):
                (folder / f"{number}.png").write_bytes(encoded(1000 * (split == "test") + 100 * label + number, label))
    return tmp_path / "photos"


def differences(a: URI, b: URI) -> dict[str, Any]:
    return diff(Results.of(a), Results.of(b))


def names(document: dict[str, Any]) -> dict[str, Any]:
    """The files of each sort of change."""
    return {sort: [row["file"] for row in document["data"][sort]] for sort in SORTS if document["data"][sort]}


def test_every_sort_of_change_is_told_by_digest(photos: Path, root: Root, capsys: pytest.CaptureFixture[str]) -> None:
    before = runs.ingest(root, photos)
    train = photos / "train"
    (train / "cat/new.png").write_bytes(encoded(5000, 0))
    (train / "cat/0.png").unlink()
    (train / "cat/1.png").rename(train / "cat/one.png")
    (train / "cat/2.png").rename(train / "dog/2 of cats.png")
    shutil.move(train / "dog/3.png", photos / "test/dog/from train.png")
    (train / "dog/4.png").write_bytes(encoded(5001, 1))
    (train / "cat/5.png").rename(train / "cat/swap.png")  # two files exchange their places
    (train / "dog/5.png").rename(train / "cat/5.png")
    (train / "cat/swap.png").rename(train / "dog/5.png")
    shutil.copy(train / "cat/6.png", train / "cat/6 again.png")
    after = runs.ingest(root, photos)
    document = differences(before, after)
    assert names(document) == {
        "added": ["train/cat/6 again.png", "train/cat/new.png"],
        "removed": ["train/cat/0.png"],
        "renamed": ["train/cat/one.png"],
        "relabeled": ["train/cat/5.png", "train/dog/2 of cats.png", "train/dog/5.png"],
        "moved": ["test/dog/from train.png"],
        "changed": ["train/dog/4.png"],
    }
    (row,) = document["data"]["renamed"]
    assert row == {"file": "train/cat/one.png", "class": "cat", "split": "train", "file_before": "train/cat/1.png"}
    assert document["data"]["by_class"]["relabeled"] == {"cat -> dog": 2, "dog -> cat": 1}
    assert document["data"]["by_class"]["removed"] == {"cat": 1}
    assert app.main(words=["diff", before, after, "--storage", root]) == 0
    assert "removed in the data (1)\n  train/cat/0.png  cat" in capsys.readouterr().out


def test_rows_of_parquet_are_told_by_their_pixels_wherever_they_stand(tmp_path: Path, root: Root) -> None:
    folder = tmp_path / "tables"
    folder.mkdir()

    def write(numbers: list[int], labels: dict[int, str]) -> DatasetURI:
        for split in ("train", "test"):
            rows = [number + 1000 * (split == "test") for number in numbers]
            column = [{"bytes": encoded(number, number % 2), "path": None} for number in rows]
            text = [labels.get(number, CLASSES[number % 2]) for number in rows]
            pq.write_table(pa.table({"image": column, "label": text}), folder / f"{split}.parquet")
        return runs.ingest(root, folder)

    before = write(list(range(12)), {})
    after = write([0, 1, *range(3, 12), 77], {5: "cat"})
    assert "has no prepared; name a result of a whole run" in differences(before, after)["notes"]["data"]
    document = differences(runs.prepare(root, before), runs.prepare(root, after))
    assert document["data"]["unit"] == "row" and names(document) == {
        "added": ["test.parquet row 11", "train.parquet row 11"],
        "removed": ["test.parquet row 2", "train.parquet row 2"],
        "relabeled": ["train.parquet row 4"],
    }
    assert document["changes"][0] == "data: 2 rows added: dog 2"


def test_bytes_that_changed_in_storage_are_damage_and_no_cause(photos: Path, root: Root) -> None:
    before = runs.ingest(root, photos)
    (photos / "train/cat/0.png").unlink()
    after = runs.ingest(root, photos)
    recorded = manifest.load(before)
    parts = {"label": recorded.split("train")[0], "gray": recorded.files_of("facts/train-")[0]}
    for column, file in parts.items():
        table = tables.read_part(before, file)
        number, values = table.column_names.index(column), pc.subtract(1, table[column])
        files.put(before.child(file.path), tables.encode(table.set_column(number, table.field(column), values)))
    document = differences(before, after)
    assert document["changes"] == [] and " is damaged: " in document["notes"]["data"]
    with pytest.raises(Damaged, match="facts/train-.* is damaged"):
        image_facts.read(before, recorded, split="train")


def flip_labels(photos: Path) -> None:
    for number in range(8):
        (photos / f"train/cat/{number}.png").rename(photos / f"train/dog/cat {number}.png")


@pytest.mark.parametrize(
    ("settings", "change", "named"),
    [
        ({"learning_rate": 0.5}, lambda photos: None, ["recipe: learning_rate 0.002 -> 0.5"]),
        ({}, flip_labels, ["data: 8 files relabeled: cat -> dog 8"]),
    ],
    ids=["learning rate", "labels"],
)
def test_planted_cause_of_a_worse_model_is_the_only_one_named(
    photos: Path, root: Root, settings: dict[str, Any], change: Callable[[Path], None], named: list[str]
) -> None:
    good = runs.run(root, photos)
    change(photos)
    wrong = {f"test/cat/{number}.png": "dog" for number in range(6)}
    document = differences(good, runs.run(root, photos, wrong=wrong, **settings))
    assert document["changes"] == named and document["notes"] == {}
    tests = document["test_rows"]
    assert {row["file"] for row in tests["worse"]} == wrong.keys() and tests["better"] == []
    accuracy = tests["metrics"]["test_accuracy"]
    assert accuracy["difference"] == pytest.approx(-0.3) and accuracy["lower"] < -0.3 < accuracy["upper"] < 0
    for name in ("balanced_accuracy", "macro_f1"):
        values = tests["metrics"][name]
        assert values["difference"] == values["b"] - values["a"] < 0 and values["p_value"] < 0.05


def test_code_versions_and_hardware_are_named(finished: Finished, tmp_path: Path) -> None:
    copy = finished.copy_to(tmp_path / "root")
    first, second = copy.champion.train.target, copy.plan.train.target
    made = manifest.load(second)
    statistics = made.statistics_of(CHECKPOINT).model_copy(update={"hardware": ("bf16 on cuda: H100, torch 2.14.1",)})
    producer = made.producer | {"torch": "9.9", "git": "c0ffee dirty 0123456789ab", "code": "0123456789ab"}
    changed = made.model_copy(update={"producer": producer, "statistics": statistics}).signed()
    files.put(second.child(manifest.NAME), changed.to_json())
    document = differences(first, second)
    assert document["versions"]["torch"]["b"] == "9.9"
    assert (document["code"]["commit"]["b"], document["code"]["digest"]["b"]) == ("c0ffee", "0123456789ab")
    assert "H100" in document["hardware"]["training"]["b"] and document["data"]["counts"]["added"] == 0


def test_models_are_compared_on_the_test_rows_that_both_datasets_have(photos: Path, root: Root) -> None:
    first = runs.run(root, photos, wrong={"test/cat/0.png": "dog", "test/cat/1.png": "dog"})
    (photos / "test/cat/1.png").unlink()
    (photos / "test/cat/2.png").rename(photos / "test/cat/two.png")
    shutil.copy(photos / "train/cat/7.png", photos / "test/cat/seen.png")  # both were trained on it
    second = runs.run(root, photos, wrong={"test/cat/two.png": "dog", "test/dog/3.png": "cat"})
    tests = differences(first, second)["test_rows"]
    assert (tests["rows"], tests["only_a"], tests["only_b"]) == (19, 1, 1)
    assert [row["file"] for row in tests["better"]] == ["test/cat/0.png"]
    assert {row["file"] for row in tests["worse"]} == {"test/cat/two.png", "test/dog/3.png"}
    runs.predict(root, first, DatasetURI(manifest.load(second).parent("prepared", of=second)), {})
    tests = differences(first, second)["test_rows"]
    assert (tests["rows"], len(tests["worse"]), tests["better"]) == (19, 2, [])
    assert "1 of 20 test rows excluded" in tests["note"]


def test_command_takes_runs_by_name_and_the_champion(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = finished.champion.train.target, finished.plan.train.target

    def text(*words: str, root: Root = finished.root) -> str:
        capsys.readouterr()
        assert app.main(words=["diff", *words, "--storage", root]) == 0
        return capsys.readouterr().out

    for words in ([f"champion:{finished.plan.registered_model}", second.name], ["champion", finished.report]):
        document = json.loads(text(*words, "--json"))
        assert document.keys() == documented.keys("`diff`")
        assert document["changes"] == ["recipe: epochs 8 -> 2", "recipe: learning_rate 0.002 -> 0.0001"]
        assert finished.deleted in [row["file"] for row in document["test_rows"]["worse"]]
    shown = text(first.name, second.name)
    assert "learning_rate 0.002 -> 0.0001" in shown and "accuracy      1.0000  0." in shown
    assert "nothing that is recorded" in text(first, first)
    copy = finished.copy_to(tmp_path / "root")
    files.remove(copy.plan.preprocess.raw)
    files.remove(copy.plan.preprocess.target)
    assert " cannot be compared: " in text(first.name, second.name, root=copy.root)
    assert app.main(words=["diff", first.name, "nothing", "--storage", finished.root]) == 2
