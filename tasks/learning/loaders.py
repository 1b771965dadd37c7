"""Loaders: from the rows of one rank to batches, the same for the same (seed, epoch)."""

from collections.abc import Iterator

import torch
from torch import Tensor

from tasks.learning.loop import Batch, mixed_seed


class ResidentLoader:
    """Holds its rows as uint8 on the device and slices a permutation of them: no work per row, no copy per epoch.

    Images are uint8 NHWC, labels int64 (N,).
    """

    def __init__(self, train: Batch, validation: Batch, *, seed: int, rank: int, device: torch.device) -> None:
        self.train = _to(device, train)
        self.validation = _to(device, validation)
        self.seed, self.rank = seed, rank

    def num_train_rows(self) -> int:
        return len(self.train[1])

    def train_batches(self, *, epoch: int, batch_size: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch, self.rank, 1))
        order = torch.randperm(self.num_train_rows(), generator=generator).to(self.train[1].device)
        for chosen in order.split(batch_size):
            if len(chosen) == batch_size:
                yield self.train[0][chosen], self.train[1][chosen]

    def validation_batches(self, *, batch_size: int) -> Iterator[Batch]:
        images, labels = self.validation
        yield from zip(images.split(batch_size), labels.split(batch_size), strict=True)


def _to(device: torch.device, batch: Batch) -> tuple[Tensor, Tensor]:
    return batch[0].to(device), batch[1].to(device)
