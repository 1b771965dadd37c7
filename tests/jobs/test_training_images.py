"""The first training images as the model sees them: kept, committed and shown, whatever feeds the training."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from prefect import flow
from prefect.artifacts import Artifact
from torch.nn.functional import cross_entropy

from storage import error_policy, manifest
from storage.uri import DatasetURI, Root
from tasks.jobs.events import IMAGES
from tasks.jobs.spec import TrainSpec
from tasks.jobs.train import attempts
from tasks.learning import images, step
from tasks.learning.modeling import Classifier
from tasks.runners.job_log import Follower
from tests.jobs import raw
from tests.jobs.raw import run

pytestmark = pytest.mark.usefixtures("more_models")


def training_images_of(spec: TrainSpec) -> pa.Table:
    """The committed table."""
    table = attempts.training_images(spec.target, manifest.load(spec.target))
    assert table is not None
    return table


@pytest.mark.parametrize(
    "changes", [{"batch_size": 40}, {"micro_batches": 3}, {"loader": "streaming"}, {"loader": "dataloader"}]
)
def test_first_images_that_went_into_the_model_are_kept_with_their_labels(
    prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any]
) -> None:
    seen: list[torch.Tensor] = []
    asked: list[torch.Tensor] = []
    forward = Classifier.forward

    def recorded(model: Classifier, pixels: torch.Tensor) -> torch.Tensor:
        seen.append(pixels.clone())
        return forward(model, pixels)

    def recorded_loss(logits: torch.Tensor, labels: torch.Tensor, **how: Any) -> torch.Tensor:
        asked.append(labels.clone())
        return cross_entropy(logits, labels, **how)

    monkeypatch.setattr(Classifier, "forward", recorded)
    monkeypatch.setattr(step, "cross_entropy", recorded_loss)
    spec = raw.to_train(Root(str(tmp_path)), prepared, epochs=1, **changes)
    run(spec)
    pixels, labels = images.to_arrays(training_images_of(spec), (12, 12, 1))
    assert labels is not None and len(labels) == min(32, spec.recipe.training.batch_size)
    assert np.array_equal(pixels, torch.cat(seen)[: len(pixels)])
    assert np.array_equal(labels, torch.cat(asked)[: len(labels)])


def test_images_that_cannot_be_kept_never_fail_the_training(
    prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any) -> None:
        raise error_policy.DiskFull("the disk is full")

    monkeypatch.setattr(attempts, "write_training_images", fails)
    spec = raw.to_train(Root(str(tmp_path)), prepared, epochs=1)
    run(spec)
    assert "WARNING: the first training images cannot be saved: the disk is full" in caplog.text
    assert attempts.training_images(spec.target, manifest.load(spec.target)) is None


@pytest.mark.usefixtures("prefect_server")
def test_run_shows_them_with_their_classes_on_its_page(prepared: DatasetURI, tmp_path: Path) -> None:
    spec = raw.to_train(Root(str(tmp_path)), prepared, epochs=1)

    @flow
    def trains() -> None:
        run(spec)

    trains()
    artifact: Any = Artifact.get("training-images")
    assert artifact is not None and artifact.type == "markdown"
    cells = [line.split(" | ") for line in artifact.data.splitlines()[2:]]
    shown = [cell.strip("| ").split("<br>") for row in cells for cell in row]
    assert all(picture.startswith(f"![{name}](data:image/png;base64,iVBOR") for picture, name in shown)
    assert [name for _, name in shown] == [name for _, name in images.with_names(training_images_of(spec))]


@pytest.mark.usefixtures("prefect_server")
def test_images_that_cannot_be_shown_never_fail_the_run(tmp_path: Path) -> None:
    @flow
    def follows() -> str:
        follower = Follower("train")
        file = '{"path": "training-images-0.parquet", "size": 1, "sha256": "0"}'
        follower.line(f'{IMAGES}{{"uri": "{tmp_path}", "file": {file}}}')
        follower.line(f"{IMAGES}{{}}")
        follower.line(f"{IMAGES}[")
        return "it goes on"

    assert follows() == "it goes on"
