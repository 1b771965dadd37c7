"""The loader of one rank: resident in memory, streaming through it every epoch, or torch's DataLoader."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import numpy as np
import torch
from torch.utils.data import DataLoader

from storage.manifest import Manifest
from storage.uri import DatasetURI
from tasks.jobs import parts
from tasks.learning import images
from tasks.learning.loaders import MapStyleLoader, ResidentLoader, rows_of, to_device
from tasks.learning.loop import Batch, Loader, mixed_seed
from tasks.learning.recipes import Recipe

Block = tuple[np.ndarray, np.ndarray]
"""Images (uint8, BHWC) and labels (int64, (B,)), read-only."""
_WINDOW_ROWS = 32_768
"""Rows among which the streaming loader shuffles, at most: the prepared dataset is in a random order already."""
_WINDOW_BYTES = 32 * 2**20
"""Pixels of them, at most."""


class RowSource(Protocol):
    """The rows of one rank."""

    def windows(self, split: str, *, size: int) -> Iterator[Batch]:
        """Yield all rows of `split` in their order, `size` at a time, on the device; the last piece may be smaller."""


def make_loader(
    recipe: Recipe,
    uri: DatasetURI,
    prepared: Manifest,
    *,
    kind: str,
    rank: int,
    world_size: int,
    device: torch.device,
    prepare: Callable[[DataLoader[Batch]], Iterable[Batch]],
    rows: RowSource | None = None,
) -> Loader:
    """Make the loader `kind` (`auto` is resolved before) of one rank.

    Args:
        recipe: Gives the seed.
        uri: The prepared dataset, whose manifest is `prepared`.
        prepared: Lists the parts of each split.
        kind: `resident`, `streaming`, `dataloader` or `ray-data`.
        rank: Of this worker, from 0.
        world_size: Workers together.
        device: Where batches go.
        prepare: Makes a DataLoader one whose batches are on `device`.
        rows: Where `ray-data` gets its rows from; None: this process reads them, which gives the same batches.
    """
    shape = images.shape_of(prepared.columns["metadata"])

    def slices(split: str) -> list[parts.Slice]:
        return parts.shard(prepared.split(split), rank=rank, world_size=world_size)

    def held(some: Sequence[parts.Slice]) -> Batch:
        return tensors(_blocks(uri, some, shape), num_rows=_num_rows(some), shape=shape)

    if kind == "resident":
        train, validation = (held(slices(split)) for split in ("train", "validation"))
        return ResidentLoader(train, validation, seed=recipe.seed, rank=rank, device=device)
    if kind == "dataloader":
        train, validation = (held(parts.whole(prepared.split(split))) for split in ("train", "validation"))
        return MapStyleLoader(train, validation, seed=recipe.seed, rank=rank, world_size=world_size, prepare=prepare)
    found = rows or PartsReader(uri, slices, shape=shape, device=device)
    window_rows = min(_WINDOW_ROWS, _WINDOW_BYTES // math.prod(shape))
    num_rows = _num_rows(slices("train"))
    return StreamingLoader(found, num_rows=num_rows, window_rows=window_rows, seed=recipe.seed, rank=rank)


class StreamingLoader:
    """Reads a rank's rows again every epoch, holding a few windows of them, each shuffled by (seed, epoch, rank)."""

    def __init__(self, rows: RowSource, *, num_rows: int, window_rows: int, seed: int, rank: int) -> None:
        self.rows, self.num_rows, self.window_rows = rows, num_rows, window_rows
        self.seed, self.rank = seed, rank

    def num_train_rows(self) -> int:
        return self.num_rows

    def train_batches(self, *, epoch: int, batch_size: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch, self.rank, 1))
        for window in self._windows("train", batch_size):
            order = torch.randperm(len(window[1]), generator=generator).to(window[1].device)
            for chosen in order.split(batch_size):
                if len(chosen) == batch_size:
                    yield rows_of(window, chosen)

    def validation_batches(self, *, batch_size: int) -> Iterator[Batch]:
        for pixels, labels in self._windows("validation", batch_size):
            yield from zip(pixels.split(batch_size), labels.split(batch_size), strict=True)

    def _windows(self, split: str, batch_size: int) -> Iterator[Batch]:
        """Whole windows go to the device: one copy each, and batches are gathered where they are used."""
        yield from self.rows.windows(split, size=max(1, self.window_rows // batch_size) * batch_size)


class PartsReader:
    """Reads a rank's rows in this process, the next parts while earlier ones are in use."""

    def __init__(
        self,
        uri: DatasetURI,
        slices: Callable[[str], Sequence[parts.Slice]],
        *,
        shape: tuple[int, int, int],
        device: torch.device,
    ) -> None:
        self.uri, self.slices, self.shape, self.device = uri, slices, shape, device

    def windows(self, split: str, *, size: int) -> Iterator[Batch]:
        held: list[Block] = []
        missing = size
        for pixels, labels in _blocks(self.uri, self.slices(split), self.shape):
            while len(labels):
                held.append((pixels[:missing], labels[:missing]))
                pixels, labels = pixels[missing:], labels[missing:]
                missing -= len(held[-1][1])
                if missing == 0:
                    yield to_device(self.device, tensors(held, num_rows=size, shape=self.shape))
                    held, missing = [], size
        if held:
            yield to_device(self.device, tensors(held, num_rows=size - missing, shape=self.shape))


def _num_rows(slices: Iterable[parts.Slice]) -> int:
    return sum(part.stop - part.start for part in slices)


def _blocks(uri: DatasetURI, slices: Sequence[parts.Slice], shape: tuple[int, int, int]) -> Iterator[Block]:
    """The rows of `slices` in their order."""
    for table in parts.read_ahead(uri, slices):
        pixels, labels = images.to_arrays(table, shape)
        assert labels is not None
        yield pixels, labels


def tensors(blocks: Iterable[Block], *, num_rows: int, shape: tuple[int, int, int]) -> Batch:
    """Copy the `num_rows` rows of all `blocks`, in their order, into tensors (uint8 BHWC, int64)."""
    pixels, labels = np.empty((num_rows, *shape), np.uint8), np.empty(num_rows, np.int64)
    start = 0
    for some, their in blocks:
        here = slice(start, start + len(their))
        pixels[here], labels[here] = some, their
        start = here.stop
    assert start == num_rows, "a row was lost on the way"
    return torch.from_numpy(pixels), torch.from_numpy(labels)
