"""Temperature: one number by which logits are divided, so that probabilities are as high as the model is right."""

import math

import torch
import torch.distributed as dist
from torch import Tensor

SHRINKING = 50
"""Validation rows from which half of the temperature's logarithm remains: few rows say little (docs/fine-tuning.md)."""
_HIGHEST = 10.0
"""The temperature is at most this, and at least its inverse."""
_HALVINGS = 24
"""Of the logarithm's interval, which becomes shorter than 1e-6."""


@torch.inference_mode()
def fit_temperature(logits_NK: Tensor, labels_N: Tensor) -> Tensor:
    """Find the temperature with the lowest cross-entropy of the rows of all ranks; each rank must call this.

    One row more is counted whose label is every class alike, as in Platt's scaling: so a few rows that are all right do
    not make every probability 1. The slope is monotonic in the inverse temperature; bisection finds its zero, in
    float64 and with sums over ranks in fixed order, so that the same logits give the same number. The fewer rows there
    are, the nearer to 1 is the result.

    Args:
        logits_NK: float32; a rank may have no rows.
        labels_N: int64.

    Returns:
        A scalar (float64) on the device, for which the host does not wait; 1 without rows.
    """
    logits = logits_NK.double()
    num_rows = _summed(logits.new_full((), len(logits)))
    spread = 1 / (num_rows + 2)
    at_labels = logits.gather(1, labels_N[:, None])[:, 0]
    expected = (1 - spread) * at_labels + spread * logits.mean(1)
    low, high = (logits.new_full((), sign * math.log(_HIGHEST)) for sign in (-1, 1))  # of the inverse's logarithm
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        predicted = ((logits * middle.exp()).softmax(1) * logits).sum(1)
        is_too_high = _summed((predicted - expected).sum()) > 0
        low, high = torch.where(is_too_high, low, middle), torch.where(is_too_high, middle, high)
    return (-(low + high) / 2 * num_rows / (num_rows + SHRINKING)).exp()


def _summed(value: Tensor) -> Tensor:
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(value)
    return value
