"""docs/use-elsewhere.md and the exported card work as they stand, without the project and what it installs."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.cli import app
from storage import files, manifest, tables
from storage.kinds import PredictionsURI
from storage.uri import URI, Root
from tasks.stages import Predict
from tests import photographs
from tests.committed import promote
from tests.image_folder import write_folder
from tests.jobs.raw import run
from tests.runs import CHECKOUT

PAGE = (CHECKOUT / "docs" / "use-elsewhere.md").read_text()
_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_MISSING = ("flows", "storage", "tasks", "pandas", "prefect", "pyarrow", "pydantic", "ray", "timm", "torch")
EVERYTHING = """
import sys, numpy, onnxruntime, preprocess
images = numpy.concatenate([preprocess.preprocess(file) for file in sys.argv[1:]])
(probabilities,) = onnxruntime.InferenceSession("model.onnx").run(["probabilities"], {"images": images})
numpy.save("probabilities.npy", probabilities)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of every format in `photos`, and below `data` the champion that was trained on them."""
    folder = tmp_path_factory.mktemp("elsewhere")
    root = Root(str(folder / "data"))
    write_folder(folder / "photos")
    raw, prepared = photographs.to_make(root, URI(str(folder / "photos")), "files")
    trained = photographs.trains(root, prepared.target)
    for stage in (raw, prepared, trained, Predict(checkpoint=trained.target, dataset=raw.target, split="test")):
        run(stage)
    promote(root, "photos", trained.target)
    return folder


@pytest.fixture(scope="module")
def exported(folder: Path) -> Path:
    """A copy of the export, with a photo beside it as the page has it."""
    place = folder / "exported"
    assert app.main(words=["export", "champion:photos", "--storage", f"{folder}/data"]) == 0
    (name,) = os.listdir(folder / "data" / "exports")
    export = Root(f"{folder}/data").child(f"exports/{name}")
    place.mkdir()
    for file in manifest.load(export).files:
        (place / file.path).write_bytes(files.read(export.child(file.path)))
    shutil.copy(folder / "photos/test/pears/photo 1.jpg", place / "photo.jpg")
    return place


def output(code: str, *arguments: str, folder: Path) -> str:
    """What `code` prints as a program of a user who has neither the project nor what it installs."""
    (folder / "program.py").write_text(f"import sys\nsys.modules |= dict.fromkeys({_MISSING})\n{code}")
    command = [sys.executable, "-W", "error", "program.py", *arguments]
    return subprocess.run(command, cwd=folder, env={"PATH": ""}, capture_output=True, text=True, check=True).stdout


def blocks(section: str) -> list[str]:
    (text,) = re.findall(rf"^##+ {section}$(.*?)(?=^##|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    return _BLOCK.findall(text)


def predicted(folder: Path) -> Any:
    """The committed predictions of all photographs that can be read, by file."""
    (name,) = os.listdir(folder / "data" / "predictions")
    rows = tables.read_split(PredictionsURI(f"{folder}/data/predictions/{name}"), "test").to_pandas()
    return rows[rows["prediction"].notna()].set_index("file")


def test_photos_get_the_committed_predictions_in_an_environment_without_this_project(
    folder: Path, exported: Path, integration: None
) -> None:
    expected = predicted(folder)
    photos = [str(folder / "photos" / name) for name in expected.index]
    output(EVERYTHING, *photos, folder=exported)
    actual = np.load(exported / "probabilities.npy")
    columns = [name for name in expected if name.startswith("probability_")]
    assert len(photos) >= 10 and np.abs(actual - expected[columns].to_numpy()).max() < 1e-5
    assert (actual.argmax(1) == expected["prediction"]).all()


def test_page_and_card_work_as_they_stand(folder: Path, exported: Path, integration: None) -> None:
    (code,) = blocks("With ONNX Runtime")
    expected = predicted(folder).loc["test/pears/photo 1.jpg"]
    (of_card,) = _BLOCK.findall((exported / "README.md").read_text())
    for snippet in (code, of_card):
        name, probability = output(snippet, folder=exported).rsplit(maxsplit=1)
        assert name == expected["class_name"]
        assert float(probability) == pytest.approx(expected["probability"], abs=1e-5)


def test_page_works_as_it_stands_with_this_project(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.delenv("PIPELINE_STORAGE", raising=False)
    shutil.copy(folder / "photos/test/pears/photo 1.jpg", "photo.jpg")
    shutil.copy(folder / "photos/test/pears/photo 0.png", "scan.png")
    names: dict[str, Any] = {}
    for block in blocks("In Python"):
        exec(block, names)
    assert names["pixels"].shape == (2, 16, 16, 3)
    rows = predicted(folder).loc[["test/pears/photo 1.jpg", "test/pears/photo 0.png"]]
    columns = [name for name in rows if name.startswith("probability_")]
    assert np.abs(names["probabilities"].numpy() - rows[columns].to_numpy()).max() < 1e-5
    assert list(names["history"]["epoch"]) == [1, 2] and "validation_accuracy" in names["history"]
