"""The loader of one rank: resident in memory, streaming through it every epoch, or torch's DataLoader."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import pyarrow as pa
import torch
from torch.utils.data import DataLoader

from storage.manifest import Manifest
from tasks.learning import images
from tasks.learning.loaders import MapStyleLoader, ResidentLoader
from tasks.learning.loop import Batch, Loader, mixed_seed
from tasks.learning.recipes import Recipe

_RESIDENT_BYTES = 2 * 2**30
"""Largest dataset, in bytes of pixels over all ranks, that `auto` holds in memory."""
_WINDOW_ROWS = 32_768
"""Rows among which the streaming loader shuffles: the prepared dataset is in a random order already."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Feed:
    """Where the rows of one rank come from."""

    shard: Callable[[str], Iterable[pa.Table]]
    """This rank's rows of a split, block by block, in an order that is always the same."""
    whole: Callable[[str], Iterable[pa.Table]]
    """Every row of a split, likewise."""
    prepare: Callable[[DataLoader[Batch]], Iterable[Batch]]
    """What makes a DataLoader one whose batches are on this rank's device."""


def make_loader(
    recipe: Recipe, prepared: Manifest, feed: Feed, *, rank: int, world_size: int, device: torch.device
) -> Loader:
    """The loader that the recipe asks for."""
    shape = images.shape_of(prepared.columns["metadata"])
    num_bytes = prepared.rows * int(np.prod(shape))
    kind = recipe.loader if recipe.loader != "auto" else "resident" if num_bytes <= _RESIDENT_BYTES else "streaming"
    if kind == "resident":
        train, validation = (_concatenated(_blocks(feed.shard(split), shape)) for split in ("train", "validation"))
        return ResidentLoader(train, validation, seed=recipe.seed, rank=rank, device=device)
    if kind == "dataloader":
        train, validation = (_concatenated(_blocks(feed.whole(split), shape)) for split in ("train", "validation"))
        return MapStyleLoader(
            train, validation, seed=recipe.seed, rank=rank, world_size=world_size, prepare=feed.prepare
        )
    total = sum(file.rows or 0 for file in prepared.split("train"))
    num_rows = total * (rank + 1) // world_size - total * rank // world_size
    return StreamingLoader(feed, shape, num_rows, seed=recipe.seed, rank=rank, device=device)


class StreamingLoader:
    """Reads this rank's shard again every epoch, holding one window of rows at a time, shuffled by (seed, epoch)."""

    def __init__(
        self, feed: Feed, shape: tuple[int, int, int], num_rows: int, *, seed: int, rank: int, device: torch.device
    ) -> None:
        self.feed, self.shape, self.num_rows = feed, shape, num_rows
        self.seed, self.rank, self.device = seed, rank, device

    def num_train_rows(self) -> int:
        return self.num_rows

    def train_batches(self, *, epoch: int, batch_size: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch, self.rank, 1))
        for window in self._windows(batch_size):
            order = torch.randperm(len(window[1]), generator=generator)
            yield from self._batches((window[0][order], window[1][order]), batch_size, whole=True)

    def validation_batches(self, *, batch_size: int) -> Iterator[Batch]:
        for block in _blocks(self.feed.shard("validation"), self.shape):
            yield from self._batches(block, batch_size, whole=False)

    def _windows(self, batch_size: int) -> Iterator[Batch]:
        """Rows in the shard's order, in pieces of a whole number of batches; the last one is what remains."""
        size = max(1, _WINDOW_ROWS // batch_size) * batch_size
        held: list[Batch] = []
        for block in _blocks(self.feed.shard("train"), self.shape):
            held.append(block)
            while sum(len(labels) for _, labels in held) >= size:
                images_, labels = _concatenated(iter(held))
                yield images_[:size], labels[:size]
                held = [(images_[size:], labels[size:])]
        if held:
            yield _concatenated(iter(held))

    def _batches(self, rows: Batch, batch_size: int, *, whole: bool) -> Iterator[Batch]:
        for pair in zip(rows[0].split(batch_size), rows[1].split(batch_size), strict=True):
            if len(pair[1]) == batch_size or (len(pair[1]) and not whole):
                yield pair[0].to(self.device), pair[1].to(self.device)


def _blocks(tables: Iterable[pa.Table], shape: tuple[int, int, int]) -> Iterator[Batch]:
    for table in tables:
        yield _tensors(table, shape)


def _tensors(block: pa.Table, shape: tuple[int, int, int]) -> Batch:
    pixels, labels = images.to_arrays(block, shape)
    assert labels is not None
    return torch.from_numpy(pixels.copy()), torch.from_numpy(labels.astype(np.int64))


def _concatenated(blocks: Iterator[Batch]) -> Batch:
    held = list(blocks)
    return torch.cat([pixels for pixels, _ in held]), torch.cat([labels for _, labels in held])
