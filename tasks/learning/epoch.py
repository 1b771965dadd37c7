"""What is said of an epoch before and after it, without torch: its steps, its figures, and what goes wrong in it."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

MAX_WAIT_SHARE = 0.05
"""Share of an epoch spent waiting for data, or for checkpoints, above which a hint says what helps."""
_MIN_WAIT_S = 1.0
"""Shorter waits get no hint, however short the epoch."""
_WAITS = (
    (
        "data_wait_s",
        "data",
        "try --set loader=resident if the rows fit in memory; see docs/workers.md",
    ),
    ("checkpoint_wait_s", "checkpoints", "use faster storage; see docs/workers.md"),
)
"""What is waited for: the field that says how long, its name, and what helps."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EpochMetrics:
    """What one epoch gave, over all ranks."""

    epoch: int
    """From 1."""
    step: int
    """Optimizer steps since the start."""
    train_loss: float
    """Mean over the epoch's rows, label smoothing included."""
    train_accuracy: float
    """Share of augmented training rows predicted right while learning."""
    validation_loss: float
    """Mean cross-entropy over all validation rows."""
    validation_accuracy: float
    """Share of validation rows predicted right."""
    learning_rate: float
    """At the end of the epoch."""

    # Measured, not computed: two runs that are equal bit by bit differ in these. Each is the largest of all ranks.
    seconds: float = dataclasses.field(default=0.0, compare=False)
    """From the end of the epoch before, its checkpoint included, to the end of validation; 0: not measured."""
    data_wait_s: float = dataclasses.field(default=0.0, compare=False)
    """Of these, spent waiting for the next batch of training or validation."""
    checkpoint_wait_s: float = dataclasses.field(default=0.0, compare=False)
    """Of these, spent waiting for the checkpoint of the epoch before."""

    @property
    def waits(self) -> str:
        """What was waited for, in words."""
        data, checkpoints = f"{self.data_wait_s:.1f} s for data", f"{self.checkpoint_wait_s:.1f} s for checkpoints"
        return f"waited {data}, {checkpoints} of {self.seconds:.1f} s"


def wait_hints(history: Sequence[Mapping[str, float]]) -> Iterator[tuple[int, str]]:
    """Yield the first epoch in which waiting for data took too large a share, and what helps; then for checkpoints.

    Args:
        history: The fields of one `EpochMetrics` an epoch; those of earlier versions have no times.
    """
    for field, what, help_ in _WAITS:
        for row in history:
            waited_s, seconds, epoch = row.get(field, 0.0), row.get("seconds", 0.0), int(row["epoch"])
            if waited_s >= _MIN_WAIT_S and waited_s > MAX_WAIT_SHARE * seconds:
                yield epoch, f"waiting for {what} took {100 * waited_s / seconds:.0f} % of epoch {epoch}: {help_}"
                break


class WrongBatchSize(ValueError):
    """The batch is larger than the rows or smaller than the workers."""


def local_batch_size(batch_size: int, *, rank: int, world_size: int) -> int:
    """Rows of a global batch that fall to `rank`; the ranks' shares add up to it and differ by at most one."""
    return batch_size // world_size + int(rank < batch_size % world_size)


def check_steps(steps: int, *, batch_size: int, world_size: int, num_rows: int) -> None:
    """Raise `WrongBatchSize` unless every rank has a step in each epoch; `num_rows` are those of one rank."""
    if steps == 0:
        raise WrongBatchSize(
            f"batch_size must lie between the workers and the training rows: got {batch_size}"
            f" with {world_size} workers and {num_rows} rows on one of them; choose another"
        )


class NonFiniteLoss(RuntimeError):
    """The loss became NaN or infinite: trying again would give the same."""
