"""Resumed trainings: whatever random numbers a model draws, its weights are those of an uninterrupted run."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.learning.sources import Split
from tests.learning import ranks, training

pytestmark = pytest.mark.usefixtures("one_thread", "more_models")

FINE_TUNING: dict[str, Any] = {
    "model": "timm/mobilenetv3_small_050",
    "start": "pretrained",
    "epochs": 4,
    "freeze_epochs": 2,
    "backbone_lr_scale": 0.1,
}
"""Two epochs of the head, two of everything."""


def test_how_an_optimizer_runs_on_a_device_is_not_taken_to_another(digits: dict[str, Split], tmp_path: Path) -> None:
    there, here = (training.small(digits) for _ in range(2))
    history = [there.run_epoch(1)]
    there.optimizer.param_groups[0]["capturable"] = True  # as on a GPU; on a CPU it would be an error
    training.save(there, history, tmp_path)
    training.resume(here, tmp_path)
    assert here.optimizer.param_groups[0]["capturable"] is False
    assert here.run_epoch(2).step == 2 * history[0].step


def test_a_schedule_of_ones_own_goes_on_where_it_was(digits: dict[str, Split], tmp_path: Path) -> None:
    whole, resumed = (training.small(digits) for _ in range(2))
    for trainer in (whole, resumed):  # its milestones are numbers
        trainer.scheduler = torch.optim.lr_scheduler.MultiStepLR(trainer.optimizer, milestones=[2, 6])
    history = [whole.run_epoch(1)]
    training.save(whole, history, tmp_path)
    training.resume(resumed, tmp_path)
    rates = [trainer.run_epoch(2).learning_rate for trainer in (whole, resumed)]
    assert rates[0] == rates[1] < history[0].learning_rate


@pytest.mark.parametrize("after", [1, 3])
def test_more_epochs_go_on_with_a_backbone_that_was_frozen_and_has_its_own_rate(
    digits: dict[str, Split], tmp_path: Path, after: int
) -> None:
    settings = FINE_TUNING | {"schedule": "warmup-constant-decay"}
    short, longer, whole = (training.small(digits, **settings | {"epochs": epochs}) for epochs in (4, 7, 7))
    history, _ = ([trainer.run_epoch(epoch) for epoch in range(1, after + 1)] for trainer in (short, whole))
    training.save(short, history, tmp_path)
    training.resume(longer, tmp_path)
    ours, theirs = (training.computed(trainer.run_epoch(after + 1)) for trainer in (longer, whole))
    assert ours == theirs and ours["backbone_learning_rate"] == (0.0 if after == 1 else 0.1 * ours["learning_rate"])
    assert training.same(*map(training.weights, (longer, whole)))


@pytest.mark.parametrize(
    ("settings", "after"),
    [
        ({"model": "drawing"}, 1),
        ({"model": "resnet18"}, 1),
        (FINE_TUNING, 1),
        (FINE_TUNING, 3),
    ],
)
@pytest.mark.slow
def test_ranks_that_resume_end_with_the_weights_of_ranks_that_never_stopped(
    digits: dict[str, Split], tmp_path: Path, settings: dict[str, Any], after: int
) -> None:
    world_size = 3
    rows = {split: training.rows(digits[split], 0, 12 * world_size) for split in ("train", "test")}
    torch.save(rows, tmp_path / "digits.pt")
    ranks.start(ranks.resume, str(tmp_path), world_size, settings, after, world_size=world_size)
    every = [torch.load(tmp_path / f"rank-{rank}.pt", weights_only=True) for rank in range(world_size)]
    assert all(training.same(tensors["whole"], tensors["resumed"]) for tensors in every)
    dropped = {tuple(tensors["dropped"].flatten().tolist()) for tensors in every}
    assert len(dropped) == (world_size if settings["model"] == "drawing" else 1), "each rank drops pixels of its own"
