"""Mistakes are the test rows that the model gets wrong, by file, worst first, and as copies."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from flows.cli import app
from storage import tables
from storage.uri import Root
from tests.finished import Finished
from tests.tasks.test_evaluate import Scene


def mistakes(root: Root, *words: str) -> int:
    return app.main(words=["mistakes", *words, "--storage", root])


def as_json(capsys: pytest.CaptureFixture[str], root: Root, *words: str) -> Any:
    capsys.readouterr()
    assert mistakes(root, *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_wrong_files_are_named_worst_first(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    document = as_json(capsys, finished.root)
    for name in (finished.plan.train.target.name, finished.plan.predict.target):
        assert as_json(capsys, finished.root, name) == document, "any result of the last run names it"
    predicted = tables.read_split(finished.plan.predict.target, "test").to_pandas()
    wrong = predicted[predicted["label"] != predicted["prediction"]]
    rows = document["mistakes"]
    assert {row["file"]: row["prediction"] for row in rows} == dict(
        zip(wrong["file"], wrong["class_name"], strict=True)
    )
    assert [row["label"] for row in rows] == [row["file"].split("/")[1] for row in rows]
    probabilities = [row["probability"] for row in rows]
    assert probabilities == sorted(probabilities, reverse=True) and document["test_rows"] == len(predicted)


def test_one_cell_of_the_confusion_matrix(finished: Finished, capsys: pytest.CaptureFixture[str]) -> None:
    label, prediction = (finished.data.mistakes[0][name] for name in ("label", "prediction"))
    rows, of_cell = (
        as_json(capsys, finished.root, *words)["mistakes"] for words in ((), ("--class", label, "--as", prediction))
    )
    assert of_cell == [row for row in rows if (row["label"], row["prediction"]) == (label, prediction)] != []
    assert as_json(capsys, finished.root, "--class", "卵")["mistakes"] == []
    assert mistakes(finished.root, "--class", "pear") == 2
    assert "--class: no class is called 'pear'; use one such as pears" in capsys.readouterr().err


def test_copies_are_the_files_themselves_or_else_the_stored_pixels(finished: Finished, tmp_path: Path) -> None:
    words = ("--copy-to", str(tmp_path / "look"), "--csv", str(tmp_path / "../" / tmp_path.name / "wrong.csv"))
    assert mistakes(finished.root, *words) == 0
    assert mistakes(finished.root, *words) == 2, "the folder is no longer empty"
    with (tmp_path / "wrong.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["file", "label", "prediction", "probability"]
    copies = {path.name: path for path in (tmp_path / "look").iterdir()}
    for number, row in enumerate(rows, start=1):
        path = Path(row["file"])
        name = f"{number:05d} {row['label']} as {row['prediction']}, {path.name}"
        if row["file"] == finished.deleted:
            assert Image.open(copies.pop(str(Path(name).with_suffix(".png")))).size == (24, 24)
        else:
            assert copies.pop(name).read_bytes() == (finished.photos / path).read_bytes()
    assert not copies


def test_rows_of_downloaded_data_are_named_by_id(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = Root(str(tmp_path / "data"))
    assert mistakes(root) == 2
    evaluation = Scene(Path(root), classes=("cat", "dog"), labels=("cat", "cat", "dog")).evaluation(
        ("cat", "dog"), ("cat", "dog", "dog")
    )
    assert mistakes(root) == 2
    assert "has no report of a run" in capsys.readouterr().err
    (row,) = as_json(capsys, root, evaluation, "--copy-to", str(tmp_path / "look"))["mistakes"]
    assert next(iter(row.items())) == ("id", 1)
    assert [path.name for path in (tmp_path / "look").iterdir()] == ["00001 cat as dog, id 1.png"]
