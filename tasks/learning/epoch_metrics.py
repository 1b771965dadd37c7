"""Epochs without torch: batch sizes before an epoch, metrics after it, and its errors."""

import math
from collections.abc import Sequence

from storage.error_policy import Permanent
from storage.manifest import JSON
from storage.statistics import EpochMetrics

IMBALANCE = 3
"""Training rows of the largest class, as a multiple of the smallest one's, from which classes are unbalanced."""
_LONG_WAIT = 0.2
"""Share of an epoch that it may wait for images before its line says so."""
TrainingFields = JSON
"""Fields of a recipe's group `training`; a probe has no epochs: it is done at once, as after one of one."""


def best_epoch(history: Sequence[EpochMetrics]) -> int:
    """Return the epoch with the lowest validation loss, the first of equals."""
    return min(history, key=lambda metrics: (metrics.validation_loss, metrics.epoch)).epoch


def is_last(history: Sequence[EpochMetrics], training: TrainingFields) -> bool:
    """Return whether `training` ends with the last epoch of `history`.

    It is stopped `early_stop` epochs after the best epoch; 0: never. The first `freeze_epochs` do not count. Only the
    history decides, so that every rank, and a resumed run, stops at the same epoch.
    """
    epoch, epochs = len(history), training.get("epochs", 1)
    if epoch == epochs or not (training.get("early_stop") and epoch):
        return bool(epoch == epochs)
    return bool(epoch - max(best_epoch(history), training["freeze_epochs"]) >= training["early_stop"])


def choose_class_weights(class_weights: str, counts: Sequence[int]) -> list[float] | None:
    """Return the weight of each class for so many training rows of each; None if they count as they are.

    The balanced weight is all rows / (classes with rows * rows of the class), or 0: the mean over all rows is 1.
    """
    present = [count for count in counts if count]
    is_skewed = max(present, default=0) >= IMBALANCE * min(present, default=1)
    is_balanced = class_weights == "balanced" or (class_weights == "auto" and is_skewed)
    return [sum(counts) / (len(present) * count) if count else 0.0 for count in counts] if is_balanced else None


def choose_batch_size(batch_size: int, num_rows: int) -> int:
    """Return `batch_size`; for 0, at most 32, such that an epoch of `num_rows` has 5 steps and skips few rows."""
    return batch_size or max(2, num_rows // max(5, math.ceil(num_rows / 32)))


def batch_start(batch_size: int, *, rank: int, world_size: int) -> int:
    """Return the number of rows of a global batch that belong to the ranks before `rank`."""
    return rank * (batch_size // world_size) + min(rank, batch_size % world_size)


def local_batch_size(batch_size: int, *, rank: int, world_size: int) -> int:
    """Return the number of rows of a global batch that belong to `rank`; ranks differ by at most one row."""
    return batch_size // world_size + int(rank < batch_size % world_size)


def gpu_use(metrics: EpochMetrics) -> str:
    """Return what the GPU did in an epoch, for the epoch's line; empty on CPUs."""
    busy = f"{metrics.gpu_busy:.0%} busy, " if metrics.gpu_busy else ""
    return f"GPU {busy}{metrics.gpu_memory / 2**30:.1f} GiB, {metrics.launch}; " if metrics.gpu_memory else ""


def decoding_limit(metrics: EpochMetrics, cores: int) -> str:
    """Return how many cores would decode at the pace of training, for the line of an epoch in which `cores` did not.

    An estimate: while the model waits, all cores decode. Empty if it waited little, if none decode, and in the first
    epoch, which also waits until they begin.
    """
    if not cores or metrics.epoch == 1 or metrics.data_wait_s <= _LONG_WAIT * metrics.seconds:
        return ""
    enough = math.ceil(cores * metrics.seconds / (metrics.seconds - metrics.data_wait_s))
    return f"decoding limits: {enough} cores would keep up; "


class NonFiniteLoss(Permanent):
    """The loss became NaN or infinite; a retry would give the same."""
