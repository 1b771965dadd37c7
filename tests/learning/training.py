"""Small training runs on real digits, set up as a Ray Train worker sets them up."""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.kinds import CheckpointURI
from storage.manifest import Parent
from storage.statistics import EpochMetrics, ModelSpec
from storage.uri import URI, Root
from tasks.jobs.train import attempts
from tasks.learning import models, pretrained, recipes, training_state
from tasks.learning.loaders import ResidentLoader
from tasks.learning.loop import Batch, Trainer, seed_everything
from tasks.learning.modeling import Classifier
from tasks.learning.recipes import Recipe
from tasks.learning.sources import Split
from tasks.learning.sources.mnist import CLASSES
from tests.committed import ENDED, RESOLVED
from tests.learning.more_models import MODELS

CPU = torch.device("cpu")
LITE0 = "timm/tf_efficientnet_lite0"
FIELDS: dict[str, Any] = {"parameters": {}, "resolved": RESOLVED}
PREPARED = "0123456789ab"
"""Fingerprint of the dataset of every run."""


def write_lite0(folder: Path) -> Path:
    """Write the ImageNet weights of `LITE0`, from a package, as `lite0.safetensors`."""
    pretrained.save_published(LITE0, folder / "lite0.safetensors")
    return folder / "lite0.safetensors"


@contextlib.contextmanager
def more_models() -> Iterator[None]:
    """Let `MODELS` be models of the project in the block."""
    with pytest.MonkeyPatch.context() as patch:
        for name, factory in MODELS.items():
            patch.setitem(models.PROJECT, name, factory)
        yield


def recipe(**changes: Any) -> Recipe:
    """The sample's recipe in fp32 with two epochs and every row alike, and with `changes`."""
    usual = recipes.override(
        recipes.load("mnist-sample-resnet18"), {"precision": "fp32", "epochs": 2, "class_weights": "none"}
    )
    return recipes.override(usual, changes)


def rows(split: Split, start: int, stop: int | None) -> Batch:
    """Rows `start` to `stop` of `split` as a loader takes them."""
    return torch.from_numpy(split.images[start:stop].copy()), torch.from_numpy(split.labels[start:stop].copy())


COUNTS = (0, *range(10, 100, 10))
"""Training rows of each class of a skewed dataset, of which a test takes a few rows."""


def trainer(
    recipe: Recipe,
    train: Batch,
    validation: Batch,
    *,
    rank: int = 0,
    class_counts: Sequence[int] = COUNTS,
) -> Trainer:
    """A run that is about to begin its first epoch, the same for the same arguments; MNIST's mean and deviation."""
    seed_everything(recipe.finetuning.seed)
    spec = ModelSpec(model=recipe.model, image_shape=(28, 28, 1), classes=CLASSES, mean=(33.3,), std=(78.6,))
    loader = ResidentLoader(train, validation, seed=recipe.finetuning.seed, rank=rank, device=CPU)
    return Trainer(recipe, Classifier(spec), loader, precision="fp32", device=CPU, class_counts=class_counts)


def small(digits: dict[str, Split], **changes: Any) -> Trainer:
    """A run of the small model on 64 digits, four steps an epoch."""
    changes = {"model": "small", "batch_size": 16} | changes
    return trainer(recipe(**changes), rows(digits["train"], 0, 64), rows(digits["test"], 0, 32))


def save(trainer: Trainer, history: list[EpochMetrics], folder: Path | str) -> None:
    """Write the checkpoint of a run after its last epoch so far."""
    training_state.take(trainer, history, prepared=PREPARED, fields=FIELDS)(URI(str(folder)))


def commit(trainer: Trainer, root: Root, name: str, **resolved: Any) -> CheckpointURI:
    """Train the first and last epoch of a run, and commit it as a checkpoint of `root`."""
    scratch, target = root.child(f"runs/{name}"), CheckpointURI(root.child(f"checkpoints/{name}-0123456789ab"))
    fields = FIELDS | {"resolved": RESOLVED.model_copy(update=resolved)}
    write = training_state.take(trainer, [trainer.run_epoch(1)], prepared=PREPARED, fields=fields)
    write(scratch.child("attempt-1/epoch-0001"))
    prepared = Parent(uri="/nowhere/datasets/prepared/x-0123456789ab", digest="", content="")
    attempts.commit(scratch, target, parents={"prepared": prepared}, **ENDED)
    return target


def resume(trainer: Trainer, folder: Path | str) -> list[EpochMetrics]:
    """Let a run go on after a checkpoint; return its history."""
    return training_state.restore(Path(folder), trainer, prepared=PREPARED, fields=FIELDS)


def weights(trainer: Trainer) -> dict[str, torch.Tensor]:
    """A copy of everything that the model has learned, running statistics included."""
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    """Whether two models are equal bit by bit."""
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def computed(metrics: EpochMetrics) -> dict[str, Any]:
    """The fields that are equal in two runs that are equal bit by bit: all but the measured times."""
    return {field.name: getattr(metrics, field.name) for field in dataclasses.fields(metrics) if field.compare}
