"""Mistakes are the test rows that the model gets wrong, by file, worst first, and as copies."""

import csv
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from flows.cli import app
from storage import manifest
from storage.kinds import EVALUATION
from storage.uri import EvaluationURI, Root
from tests import committed
from tests.comparing import runs
from tests.image_folder import write_folder
from tests.report_page.results import commit_results

WRONG = {"test/pears/photo 0.png": "卵", "test/rote Äpfel/photo 1.jpg": "pears", "test/pears/bild-2.JPEG": "卵"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs in `photos`, and below `data` a run on them whose model gets three test files wrong."""
    folder = tmp_path_factory.mktemp("mistakes")
    runs.run(Root(str(folder / "data")), write_folder(folder / "photos"), wrong=WRONG)
    return folder


def checkpoint_of(folder: Path) -> str:
    (path,) = (folder / "data/checkpoints").iterdir()
    return path.name


def mistakes(folder: Path, *words: str) -> int:
    return app.main(words=["mistakes", *words, "--storage", str(folder / "data")])


def as_json(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> Any:
    assert mistakes(folder, *words, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_wrong_files_are_named_worst_first(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = as_json(capsys, folder, checkpoint_of(folder))
    (path,) = (folder / "data/predictions").iterdir()
    assert as_json(capsys, folder, str(path)) == document, "any result of the run names it"
    rows = document["mistakes"]
    assert {row["file"]: row["prediction"] for row in rows} == WRONG
    assert [row["label"] for row in rows] == [row["file"].split("/")[1] for row in rows]
    probabilities = [row["probability"] for row in rows]
    assert probabilities == sorted(probabilities, reverse=True) and document["test_rows"] == 12


def test_one_cell_of_the_confusion_matrix(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = as_json(capsys, folder, checkpoint_of(folder), "--class", "pears", "--as", "卵")["mistakes"]
    assert {row["file"] for row in rows} == {"test/pears/photo 0.png", "test/pears/bild-2.JPEG"}
    assert as_json(capsys, folder, checkpoint_of(folder), "--as", "rote Äpfel")["mistakes"] == []
    assert mistakes(folder, checkpoint_of(folder), "--class", "pear") == 2
    assert "--class: no class is called 'pear'; use one such as pears" in capsys.readouterr().err


def test_copies_are_the_files_themselves_or_else_the_stored_pixels(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder / "photos/test/pears", tmp_path / "kept")
    gone = folder / "photos/test/pears/photo 0.png"
    gone.unlink()
    try:
        words = ("--copy-to", str(tmp_path / "look"), "--csv", str(tmp_path / "../" / tmp_path.name / "wrong.csv"))
        assert mistakes(folder, checkpoint_of(folder), *words) == 0
        assert mistakes(folder, checkpoint_of(folder), *words) == 2
    finally:
        shutil.copy(tmp_path / "kept/photo 0.png", gone)
    with (tmp_path / "wrong.csv").open() as file:
        rows = list(csv.DictReader(file))
    names = [f"{number} {row['label']} as {row['prediction']}, " for number, row in enumerate(rows, start=1)]
    copies = {path.name: path for path in (tmp_path / "look").iterdir()}
    for row, name in zip(rows, names, strict=True):
        path = Path(row["file"])
        copy = copies.pop(f"{name}{path.name}")
        if path.name == "photo 0.png":
            assert Image.open(copy).size == (8, 8)
        else:
            assert copy.read_bytes() == (folder / "photos" / path).read_bytes()
    assert not copies and list(rows[0]) == ["file", "label", "prediction", "probability"]


def test_latest_run_on_downloaded_data_is_the_default(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert mistakes(tmp_path) == 2
    plan, _ = commit_results(tmp_path / "data")
    assert mistakes(tmp_path) == 2
    assert "has no report of a run" in capsys.readouterr().err
    report = plan.root.child("reports/mnist-0123456789ab")
    committed.commit(report, "report", parents={"evaluation": plan.evaluate.target})
    rows = as_json(capsys, tmp_path, "--copy-to", str(tmp_path / "look"))["mistakes"]
    accuracy = manifest.load(EvaluationURI(plan.evaluate.target)).statistics_of(EVALUATION).test_accuracy
    assert len(rows) == round(400 * (1 - accuracy)) > 0 and next(iter(rows[0])) == "id"
    assert len(list((tmp_path / "look").iterdir())) == len(rows)
