"""The loader of one rank: resident in memory, streaming through it every epoch, or torch's DataLoader."""

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch
from torch.utils.data import DataLoader

from storage.manifest import Manifest
from storage.uri import DatasetURI
from tasks.jobs import parts
from tasks.learning import images
from tasks.learning.loaders import MapStyleLoader, ResidentLoader
from tasks.learning.loop import Batch, Loader, mixed_seed
from tasks.learning.recipes import Recipe

_RESIDENT_BYTES = 2 * 2**30
"""Largest dataset, in bytes of pixels over all ranks, that `auto` holds in memory."""
_WINDOW_ROWS = 32_768
"""Rows among which the streaming loader shuffles: the prepared dataset is in a random order already."""


def make_loader(
    recipe: Recipe,
    uri: DatasetURI,
    prepared: Manifest,
    *,
    rank: int,
    world_size: int,
    device: torch.device,
    prepare: Callable[[DataLoader[Batch]], Iterable[Batch]],
) -> Loader:
    """The loader that the recipe asks for; `prepare` makes a DataLoader one whose batches are on this rank's device."""
    shape = images.shape_of(prepared.columns["metadata"])

    def shard(split: str) -> Iterator[Batch]:
        return _blocks(uri, parts.shard(prepared.split(split), rank=rank, world_size=world_size), shape)

    num_bytes = prepared.rows * int(np.prod(shape))
    kind = recipe.loader if recipe.loader != "auto" else "resident" if num_bytes <= _RESIDENT_BYTES else "streaming"
    if kind == "resident":
        train, validation = (_concatenated(shard(split)) for split in ("train", "validation"))
        return ResidentLoader(train, validation, seed=recipe.seed, rank=rank, device=device)
    if kind == "dataloader":
        train, validation = (
            _concatenated(_blocks(uri, parts.whole(prepared.split(split)), shape)) for split in ("train", "validation")
        )
        return MapStyleLoader(train, validation, seed=recipe.seed, rank=rank, world_size=world_size, prepare=prepare)
    total = sum(file.rows or 0 for file in prepared.split("train"))
    num_rows = total * (rank + 1) // world_size - total * rank // world_size
    return StreamingLoader(shard, num_rows, seed=recipe.seed, rank=rank, device=device)


class StreamingLoader:
    """Reads this rank's shard again every epoch, holding one window of rows at a time, shuffled by (seed, epoch)."""

    def __init__(
        self, shard: Callable[[str], Iterator[Batch]], num_rows: int, *, seed: int, rank: int, device: torch.device
    ) -> None:
        self.shard, self.num_rows, self.seed, self.rank, self.device = shard, num_rows, seed, rank, device

    def num_train_rows(self) -> int:
        return self.num_rows

    def train_batches(self, *, epoch: int, batch_size: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch, self.rank, 1))
        for window in self._windows(batch_size):
            order = torch.randperm(len(window[1]), generator=generator)
            yield from self._batches((window[0][order], window[1][order]), batch_size, whole=True)

    def validation_batches(self, *, batch_size: int) -> Iterator[Batch]:
        for block in self.shard("validation"):
            yield from self._batches(block, batch_size, whole=False)

    def _windows(self, batch_size: int) -> Iterator[Batch]:
        """Rows in the shard's order, in pieces of a whole number of batches; the last one is what remains."""
        size = max(1, _WINDOW_ROWS // batch_size) * batch_size
        held: list[Batch] = []
        for block in self.shard("train"):
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


def _blocks(uri: DatasetURI, slices: Sequence[parts.Slice], shape: tuple[int, int, int]) -> Iterator[Batch]:
    """The rows of `slices` in their order, a block each."""
    for table in parts.read_ahead(uri, slices):
        pixels, labels = images.to_arrays(table, shape)
        assert labels is not None
        yield torch.from_numpy(pixels.copy()), torch.from_numpy(labels.astype(np.int64))


def _concatenated(blocks: Iterator[Batch]) -> Batch:
    held = list(blocks)
    return torch.cat([pixels for pixels, _ in held]), torch.cat([labels for _, labels in held])
