"""Loaders: from the rows of one rank to batches, the same for the same (seed, epoch)."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

from tasks.learning.loop import Batch, mixed_seed


class ResidentLoader:
    """Holds its rows as uint8 on the device and slices a permutation of them: no work per row, no copy per epoch.

    Images are uint8 NHWC, labels int64 (N,).
    """

    def __init__(self, train: Batch, validation: Batch, *, seed: int, rank: int, device: torch.device) -> None:
        self.train = to_device(device, train)
        self.validation = to_device(device, validation)
        self.seed, self.rank = seed, rank

    def num_train_rows(self) -> int:
        return len(self.train[1])

    def train_batches(self, *, epoch: int, batch_size: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch, self.rank, 1))
        order = torch.randperm(self.num_train_rows(), generator=generator).to(self.train[1].device)
        for chosen in order.split(batch_size):
            if len(chosen) == batch_size:
                yield rows_of(self.train, chosen)

    def validation_batches(self, *, batch_size: int) -> Iterator[Batch]:
        images, labels = self.validation
        yield from zip(images.split(batch_size), labels.split(batch_size), strict=True)


class MapStyleLoader:
    """The tutorials' way: a map-style data set that every rank holds whole, DataLoader and DistributedSampler.

    `train` and `validation` are the rows of all ranks; `prepare` puts the batches of a DataLoader on the device.
    """

    def __init__(
        self,
        train: Batch,
        validation: Batch,
        *,
        seed: int,
        rank: int,
        world_size: int,
        prepare: Callable[[DataLoader[Batch]], Iterable[Batch]],
    ) -> None:
        self.train, self.prepare = TensorDataset(*train), prepare
        # The sampler adds the epoch to its seed: neighbouring seeds must not give each other's epochs.
        self.sampler: DistributedSampler[Any] = DistributedSampler(
            self.train, num_replicas=world_size, rank=rank, seed=mixed_seed(seed, 1) // 2, drop_last=True
        )
        # Not by such a sampler, which repeats rows until every rank has as many.
        num_rows = len(validation[1])
        own = range(num_rows * rank // world_size, num_rows * (rank + 1) // world_size)
        self.validation = Subset(TensorDataset(*validation), own)

    def num_train_rows(self) -> int:
        return len(self.sampler)

    def train_batches(self, *, epoch: int, batch_size: int) -> Iterator[Batch]:
        self.sampler.set_epoch(epoch)
        yield from self._batches(self.train, batch_size, sampler=self.sampler, drop_last=True)

    def validation_batches(self, *, batch_size: int) -> Iterator[Batch]:
        yield from self._batches(self.validation, batch_size)

    def _batches(self, rows: Dataset[Any], batch_size: int, **how: Any) -> Iterator[Batch]:
        # A generator of its own, or each epoch would draw a number from the one that dropout draws from.
        loader = DataLoader(rows, batch_size=batch_size, generator=torch.Generator(), **how)
        yield from map(tuple, self.prepare(loader))  # they come as lists


def rows_of(batch: Batch, chosen: Tensor) -> Batch:
    """The `chosen` rows, copied one by one: `batch[0][chosen]` would copy pixel by pixel."""
    return batch[0].index_select(0, chosen), batch[1].index_select(0, chosen)


def to_device(device: torch.device, batch: Batch) -> Batch:
    """`batch` on `device`; nothing is copied when it is there."""
    return batch[0].to(device), batch[1].to(device)
