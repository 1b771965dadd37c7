"""What is said of an epoch before and after it, without torch: its steps, its figures, and what goes wrong in it."""

import dataclasses


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
