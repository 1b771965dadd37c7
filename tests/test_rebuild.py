"""`verify --rebuild` makes a model again from its raw files, and names what agrees, what does not, and why."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from storage import files, manifest
from storage.kinds import CHECKPOINT, CheckpointURI
from storage.uri import Root
from tests.image_folder import encoded
from tests.runs import CHECKOUT

pytestmark = pytest.mark.slow
_SETTINGS = {
    "model": "small-cnn", "epochs": 3, "image_size": 16, "batch_size": 8, "max_shift": 1, "precision": "fp32",
    "start": "random", "ensemble": "none",
}  # fmt: skip
_KINDS = ("raw", "prepared", "checkpoint", "predictions", "evaluation")


def command(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PREFECT_LOGGING_LEVEL": "WARNING"} | variables
    return subprocess.run(
        [sys.executable, "-m", "flows", *words], env=environment, cwd=CHECKOUT, capture_output=True, text=True
    )


def trained(root: Root, photos: Path, **variables: str) -> CheckpointURI:
    settings = [f"--set={name}={value}" for name, value in _SETTINGS.items()]
    done = command("run", "--data", str(photos), "--storage", str(root), "--workers", "0", *settings, **variables)
    assert done.returncode == 0, done.stderr
    (name,) = files.children(root.child("checkpoints"))
    return CheckpointURI(root.child(f"checkpoints/{name}"))


def photos(folder: Path) -> Path:
    for number in range(60):
        path = folder / ("cat", "dog", "owl")[number % 3] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encoded(number, number % 3))
    return folder


def rebuilt(root: Root, model: CheckpointURI, *words: str) -> tuple[int, dict[str, str], list[str]]:
    done = command("verify", "--rebuild", model.name, "--storage", str(root), *words)
    lines = done.stdout.splitlines()
    assert lines, done.stderr
    verdicts = dict(line.split(maxsplit=1) for line in lines if not line.startswith(" ") and line != "why")
    return done.returncode, verdicts, [line.strip() for line in lines if line.startswith(" ")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return photos(tmp_path_factory.mktemp("photos") / "pets")


@pytest.fixture(scope="module")
def model(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Root, CheckpointURI]:
    root = Root(str(tmp_path_factory.mktemp("rebuilt") / "root"))
    return root, trained(root, folder)


def test_the_same_files_give_the_same_bytes_wherever_they_are_now(
    model: tuple[Root, CheckpointURI], tmp_path: Path
) -> None:
    before = manifest.load(model[1]).digest
    code, verdicts, causes = rebuilt(*model, "--data", str(photos(tmp_path / "pets")))
    assert (code, verdicts, causes) == (0, dict.fromkeys(_KINDS, "the same bytes"), [])
    assert manifest.load(model[1]).digest == before


def test_other_labels_are_named(model: tuple[Root, CheckpointURI], tmp_path: Path) -> None:
    other = photos(tmp_path / "pets")
    for number in (3, 6, 9):
        (other / f"cat/{number}.png").rename(other / f"dog/{number}.png")
    code, verdicts, causes = rebuilt(*model, "--data", str(other))
    assert code == 1 and {verdicts[kind] for kind in ("raw", "prepared", "checkpoint")} == {"DIFFERS"}
    assert any("data: 3 files relabeled: cat -> dog 3" in cause for cause in causes)


def test_other_hardware_is_named(folder: Path, tmp_path: Path) -> None:
    root = Root(str(tmp_path / "root"))
    code, verdicts, causes = rebuilt(root, trained(root, folder, ATEN_CPU_CAPABILITY="default"))
    assert code == 1 and verdicts["prepared"] == "the same bytes" and verdicts["checkpoint"] == "DIFFERS"
    assert any(cause.startswith("hardware: training ") for cause in causes)


def test_a_model_that_its_recipe_did_not_make_is_told(folder: Path, tmp_path: Path) -> None:
    root = Root(str(tmp_path / "root"))
    model = trained(root, folder)
    recorded: Any = manifest.load(model)
    statistics = recorded.statistics_of(CHECKPOINT)
    training = statistics.recipe["training"] | {"seed": 1}
    claimed = recorded.model_copy(
        update={"statistics": statistics.model_copy(update={"recipe": statistics.recipe | {"training": training}})}
    )
    files.put(model.child(manifest.NAME), claimed.signed().to_json())
    code, verdicts, causes = rebuilt(root, model)
    assert code == 1 and verdicts["prepared"] == "the same bytes" and verdicts["checkpoint"] == "DIFFERS"
    assert causes == ["nothing that is recorded differs: this recipe, with its seed, did not make this model"]
