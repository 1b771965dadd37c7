"""Common code of the GPU tests: trainings on a device, the distance of two results, and an error for every wait."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from tasks.learning import recipes
from tasks.learning.loaders import ResidentLoader
from tasks.learning.loop import Batch, Trainer, seed_everything
from tasks.learning.modeling import Classifier, ModelSpec, set_arithmetic

CLASSES = tuple("0123456789")
SHAPE = (32, 32, 3)


def rows(count: int, *, seed: int = 0) -> Batch:
    """Noisy images of CIFAR's shape whose brightness tells their class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % len(CLASSES)
    noise = torch.randint(0, 60, (count, *SHAPE), generator=generator)
    return (noise + 19 * labels[:, None, None, None]).to(torch.uint8), labels


def classifier(name: str) -> Classifier:
    """The model `name`, none of whose weights is zero: some models begin with a head that answers 0 to everything."""
    seed_everything(0)
    model = Classifier(ModelSpec(model=name, image_shape=SHAPE, classes=CLASSES, mean=(115.0,) * 3, std=(60.0,) * 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.01)
    return model


def trainer(device: torch.device, *, num_rows: int, **changes: Any) -> Trainer:
    """A training on `device` that is about to begin, with every kind of augmentation, as a job would set it up.

    `changes` are of the recipe `cifar10-resnet18`, which computes in fp32 here.
    """
    usual: dict[str, Any] = {"precision": "fp32", "epochs": 2, "device": device.type}
    recipe = recipes.override(recipes.load("cifar10-resnet18"), usual | changes)
    set_arithmetic(recipe.training.precision, device)
    model = classifier(recipe.model)
    loader = ResidentLoader(rows(num_rows), rows(num_rows // 2, seed=1), seed=0, rank=0, device=device)
    seed_everything(recipe.training.seed)
    precision = recipe.training.precision
    return Trainer(recipe, model, loader, precision=precision, device=device, class_counts=range(1, 11))


def distance(computed: Tensor, expected: Tensor) -> float:
    """How far `computed` is from `expected`, relative to the latter's length."""
    reference = expected.detach().double().cpu()
    return float((computed.detach().double().cpu() - reference).norm() / reference.norm().clamp_min(1e-30))


@contextlib.contextmanager
def never_waiting(device: torch.device) -> Iterator[list[str]]:
    """Make it an error inside the block when the host waits for a GPU, except to read the loss; yield what was read."""
    reads, read = list[str](), Trainer.read

    def announced(self: Trainer, totals: Tensor, *local: Tensor, what: str) -> list[float]:
        reads.append(what)
        with _waiting(device, "default"):
            return read(self, totals, *local, what=what)

    with pytest.MonkeyPatch.context() as patch, _waiting(device, "error"):
        patch.setattr(Trainer, "read", announced)
        yield reads


@contextlib.contextmanager
def _waiting(device: torch.device, mode: str) -> Iterator[None]:
    if device.type != "cuda":
        yield
        return
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)
