"""Loaders: turn the rows of one rank into batches that depend only on (seed, epoch)."""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset, TensorDataset

from tasks.learning.loop import Batch, mixed_seed


class ResidentLoader:
    """Loader that keeps its rows on the device and slices a permutation of them: no work per row, no copy per epoch."""

    def __init__(self, train: Batch, validation: Batch, *, seed: int, rank: int, device: torch.device) -> None:
        self.train, self.validation = (  # all rows at once, which would be too much memory to pin
            (images.to(device), labels.to(device)) for images, labels in (train, validation)
        )
        self.seed, self.rank = seed, rank

    def num_train_rows(self) -> int:
        return len(self.train[1])

    def train_batches(self, *, epoch: int, batch_size: int, steps: int | None = None) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch, self.rank, 1))
        order = moved(torch.randperm(self.num_train_rows(), generator=generator), self.train[1].device)
        for chosen in order[: num_used(len(order), batch_size, steps)].split(batch_size):
            yield rows_of(self.train, chosen)

    def validation_batches(self, *, batch_size: int) -> Iterator[Batch]:
        images, labels = self.validation
        if len(labels):  # `split` makes one empty batch of no rows
            yield from zip(images.split(batch_size), labels.split(batch_size), strict=True)


class MapStyleLoader:
    """Loader as in PyTorch's tutorials: every rank holds the whole map-style data set; DistributedSampler selects rows.

    `train` and `validation` are the rows of all ranks; `prepare` puts the batches of a DataLoader on the device.
    `pin_memory`: the batches lie in pinned memory, as a GPU needs them.
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
        pin_memory: bool = False,
    ) -> None:
        self.train, self.prepare, self.pin_memory = TensorDataset(*train), prepare, pin_memory
        # Mixed, since the sampler adds the epoch: seed 1 in epoch 2 would equal seed 2 in epoch 1.
        self.sampler: DistributedSampler[Any] = DistributedSampler(
            self.train, num_replicas=world_size, rank=rank, seed=mixed_seed(seed, 1) // 2, drop_last=True
        )
        # No sampler for validation: it repeats rows until every rank has equally many.
        num_rows = len(validation[1])
        own = range(num_rows * rank // world_size, num_rows * (rank + 1) // world_size)
        self.validation = Subset(TensorDataset(*validation), own)

    def num_train_rows(self) -> int:
        return len(self.sampler)

    def train_batches(self, *, epoch: int, batch_size: int, steps: int | None = None) -> Iterator[Batch]:
        self.sampler.set_epoch(epoch)
        yield from itertools.islice(self._batches(self.train, batch_size, sampler=self.sampler, drop_last=True), steps)

    def validation_batches(self, *, batch_size: int) -> Iterator[Batch]:
        yield from self._batches(self.validation, batch_size)

    def _batches(self, rows: Dataset[Any], batch_size: int, **how: Any) -> Iterator[Batch]:
        # A separate generator: otherwise each epoch would draw a number from the generator that dropout uses.
        how |= {"batch_size": batch_size, "pin_memory": self.pin_memory, "generator": torch.Generator()}
        loader: DataLoader[Batch] = DataLoader(rows, **how)
        yield from map(tuple, self.prepare(loader))  # DataLoader yields lists


def num_used(num_rows: int, batch_size: int, steps: int | None) -> int:
    """Return how many of `num_rows` rows an epoch uses: those of `steps` batches, or (none) of all full batches."""
    return batch_size * (num_rows // batch_size if steps is None else steps)


def rows_of(batch: Batch, chosen: Tensor) -> Batch:
    """Return the `chosen` rows, copied row by row; `batch[0][chosen]` would copy pixel by pixel."""
    return batch[0].index_select(0, chosen), batch[1].index_select(0, chosen)


def to_device(device: torch.device, batch: Batch) -> Batch:
    """Move `batch` to `device`, without a copy if it is already there; the host does not wait for the copy."""
    return moved(batch[0], device), moved(batch[1], device)


def moved(rows: Tensor, device: torch.device) -> Tensor:
    """Move `rows` to `device`, to a GPU through pinned memory: the host waits for a copy from any other."""
    if device.type == "cuda" and rows.device.type == "cpu":
        rows = rows.pin_memory()
    return rows.to(device, non_blocking=True)
