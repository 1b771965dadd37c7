"""Epochs: how long they waited, and which is the last."""

import dataclasses
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from storage.statistics import EpochMetrics
from tasks.learning import hardware, loop
from tasks.learning.epoch_metrics import choose_batch_size, choose_class_weights, decoding_limit, gpu_use, is_last
from tasks.learning.loop import Batch
from tasks.learning.sources import Split
from tests.learning import training


@pytest.mark.parametrize(
    ("losses", "early_stop", "frozen", "last"),
    [
        ([3, 2, 1, 2, 2, 2], 0, 0, 6),
        ([3, 2, 1, 2, 2, 2], 2, 0, 5),
        ([3, 2, 1, 1, 1, 1], 3, 0, 6),  # the first of equal epochs is the best
        ([1, 2, 2, 2, 2, 2], 2, 3, 5),  # the backbone has had two epochs
        ([1, 2, 2, 0, 2, 2], 2, 3, 6),
    ],
)
def test_training_stops_after_enough_epochs_without_a_better_one(
    losses: list[float], early_stop: int, frozen: int, last: int
) -> None:
    others = ("step", "train_loss", "train_accuracy", "validation_accuracy", "learning_rate", "backbone_learning_rate")
    common: dict[str, Any] = dict.fromkeys(others, 0)
    history = [EpochMetrics(epoch=number, validation_loss=loss, **common) for number, loss in enumerate(losses, 1)]
    how = {"epochs": len(losses), "early_stop": early_stop, "freeze_epochs": frozen}
    assert next(epoch for epoch in range(len(losses) + 1) if is_last(history[:epoch], how)) == last


def test_line_of_an_epoch_says_what_a_gpu_did_and_nothing_of_a_cpu() -> None:
    others = ("step", "train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "learning_rate")
    common: dict[str, Any] = dict.fromkeys(("epoch", *others, "backbone_learning_rate"), 0)
    on_gpu = EpochMetrics(gpu_busy=0.971, gpu_memory=5 * 2**30, launch="graph", **common)
    unmeasured = EpochMetrics(gpu_memory=2**29, **common)
    lines = [gpu_use(metrics) for metrics in (on_gpu, unmeasured, EpochMetrics(**common))]
    assert lines == ["GPU 97% busy, 5.0 GiB, graph; ", "GPU 0.5 GiB, eager; ", ""]


def test_line_of_an_epoch_that_waits_for_images_says_how_many_cores_would_decode_them_in_time() -> None:
    others = ("step", "train_loss", "train_accuracy", "validation_loss", "validation_accuracy", "learning_rate")
    common: dict[str, Any] = dict.fromkeys((*others, "backbone_learning_rate"), 0)
    waits = [EpochMetrics(epoch=2, seconds=10, data_wait_s=wait_s, **common) for wait_s in (2.0, 2.1, 9.0)]
    lines = [decoding_limit(metrics, 8) for metrics in waits]
    assert lines == ["", *(f"decoding limits: {cores} cores would keep up; " for cores in (11, 80))]
    assert decoding_limit(waits[-1], 0) == "", "pixels are not decoded"
    assert decoding_limit(dataclasses.replace(waits[-1], epoch=1), 8) == "", "the first epoch also starts the readers"


def test_mfu_is_known_only_of_gpus_whose_peak_is_known() -> None:
    epoch = 3 * 1.92e9 * 50_000  # of the tutorial's ViT
    assert hardware.mfu("NVIDIA H100 80GB HBM3", flops=epoch, seconds=1.66) == pytest.approx(0.175, abs=0.001)
    assert hardware.mfu("NVIDIA T1000", flops=epoch, seconds=1.66) == 0
    assert hardware.busy_share(training.CPU) == 0, "without NVML"


def test_balanced_weights_have_the_mean_one_and_are_chosen_from_three_to_one_on() -> None:
    assert choose_class_weights("balanced", [20, 20]) == [1, 1]
    assert choose_class_weights("auto", [200, 20, 0]) == [0.55, 5.5, 0.0]  # a class without rows does not count
    assert choose_class_weights("auto", [59, 20]) is choose_class_weights("none", [200, 20]) is None
    assert choose_class_weights("auto", [60, 20]) == pytest.approx([2 / 3, 2])


@pytest.mark.parametrize(
    ("num_rows", "batch_size", "skipped"), [(442, 31, 8), (450, 30, 0), (74, 14, 4), (28, 5, 3), (5, 2, 1)]
)
def test_the_default_batch_has_several_steps_an_epoch_and_skips_few_rows(
    num_rows: int, batch_size: int, skipped: int
) -> None:
    assert (choose_batch_size(0, num_rows), num_rows % batch_size) == (batch_size, skipped)
    assert choose_batch_size(32, num_rows) == 32


class Clock:
    """In place of the module `time`: it goes on when it is told to, and by a second for each batch of a loader."""

    def __init__(self) -> None:
        self.now = 1000.0

    def perf_counter(self) -> float:
        return self.now

    def pass_by(self, seconds: float) -> None:
        self.now += seconds

    def slowed(self, batches: Callable[..., Iterator[Batch]], **how: Any) -> Iterator[Batch]:
        for batch in batches(**how):
            self.pass_by(1)
            yield batch


@pytest.mark.usefixtures("more_models")
def test_waiting_for_data_and_checkpoints_is_measured_apart_from_learning(
    digits: dict[str, Split], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr(loop, "time", clock)
    trainer = training.small(digits)  # four batches, and one of validation
    for name in ("train_batches", "validation_batches"):
        monkeypatch.setattr(trainer.loader, name, partial(clock.slowed, getattr(trainer.loader, name)))
    first = trainer.run_epoch(1, on_batch=partial(clock.pass_by, 10))
    clock.pass_by(3)
    second = trainer.run_epoch(2, on_batch=partial(clock.pass_by, 10))
    assert (first.seconds, first.train_s, first.data_wait_s, first.checkpoint_wait_s) == (55, 44, 5, 0)
    assert (second.seconds, second.train_s, second.data_wait_s, second.checkpoint_wait_s) == (58, 44, 5, 3)
