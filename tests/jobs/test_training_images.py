"""The first training images as the model sees them: kept, committed and shown, whatever feeds the training."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch.nn.functional import cross_entropy

from storage import error_policy, manifest
from storage.uri import DatasetURI, Root
from tasks.jobs.spec import TrainSpec
from tasks.jobs.train import attempts
from tasks.learning import images, step
from tasks.learning.modeling import Classifier
from tests.jobs import raw
from tests.jobs.raw import run

pytestmark = pytest.mark.usefixtures("more_models")


def training_images_of(spec: TrainSpec) -> pa.Table:
    """The committed table."""
    table = attempts.training_images(spec.target, manifest.load(spec.target))
    assert table is not None
    return table


@pytest.mark.parametrize("changes", [{"micro_batches": 3}, {"batch_size": 40, "loader": "dataloader"}])
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
