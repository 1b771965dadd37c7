"""The loader of one rank: resident in memory, streaming through it every epoch, or torch's DataLoader."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence

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
_RESIDENT_BYTES = 2 * 2**30
"""Largest dataset, in bytes of pixels over all ranks, that `auto` holds in memory."""
_WINDOW_ROWS = 32_768
"""Rows among which the streaming loader shuffles, at most: the prepared dataset is in a random order already."""
_WINDOW_BYTES = 32 * 2**20
"""Pixels of them, at most."""


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

    def slices(split: str) -> list[parts.Slice]:
        return parts.shard(prepared.split(split), rank=rank, world_size=world_size)

    def held(some: Sequence[parts.Slice]) -> Batch:
        return _tensors(_blocks(uri, some, shape), num_rows=_num_rows(some), shape=shape)

    num_bytes = prepared.rows * int(np.prod(shape))
    kind = recipe.loader if recipe.loader != "auto" else "resident" if num_bytes <= _RESIDENT_BYTES else "streaming"
    if kind == "resident":
        train, validation = (held(slices(split)) for split in ("train", "validation"))
        return ResidentLoader(train, validation, seed=recipe.seed, rank=rank, device=device)
    if kind == "dataloader":
        train, validation = (held(parts.whole(prepared.split(split))) for split in ("train", "validation"))
        return MapStyleLoader(train, validation, seed=recipe.seed, rank=rank, world_size=world_size, prepare=prepare)
    return StreamingLoader(uri, slices, shape=shape, seed=recipe.seed, rank=rank, device=device)


class StreamingLoader:
    """Reads this rank's shard again every epoch, holding one window of rows at a time, shuffled by (seed, epoch)."""

    def __init__(
        self,
        uri: DatasetURI,
        slices: Callable[[str], Sequence[parts.Slice]],
        *,
        shape: tuple[int, int, int],
        seed: int,
        rank: int,
        device: torch.device,
    ) -> None:
        self.uri, self.slices, self.shape = uri, slices, shape
        self.seed, self.rank, self.device = seed, rank, device

    def num_train_rows(self) -> int:
        return _num_rows(self.slices("train"))

    def train_batches(self, *, epoch: int, batch_size: int) -> Iterator[Batch]:
        generator = torch.Generator().manual_seed(mixed_seed(self.seed, epoch, self.rank, 1))
        rows = min(_WINDOW_ROWS, _WINDOW_BYTES // math.prod(self.shape))
        for window in self._windows(max(1, rows // batch_size) * batch_size):
            there = to_device(self.device, window)  # whole: one copy, and batches are gathered where they are used
            order = torch.randperm(len(window[1]), generator=generator).to(self.device)
            for chosen in order.split(batch_size):
                if len(chosen) == batch_size:
                    yield rows_of(there, chosen)

    def validation_batches(self, *, batch_size: int) -> Iterator[Batch]:
        for pixels, labels in _blocks(self.uri, self.slices("validation"), self.shape):
            for start in range(0, len(labels), batch_size):
                some = pixels[start : start + batch_size], labels[start : start + batch_size]
                yield to_device(self.device, _tensors([some], num_rows=len(some[1]), shape=self.shape))

    def _windows(self, size: int) -> Iterator[Batch]:
        """The shard's rows in their order, in pieces of `size`; the last one is what remains."""
        held: list[Block] = []
        missing = size
        for pixels, labels in _blocks(self.uri, self.slices("train"), self.shape):
            while len(labels):
                held.append((pixels[:missing], labels[:missing]))
                pixels, labels = pixels[missing:], labels[missing:]
                missing -= len(held[-1][1])
                if missing == 0:
                    yield _tensors(held, num_rows=size, shape=self.shape)
                    held, missing = [], size
        if held:
            yield _tensors(held, num_rows=size - missing, shape=self.shape)


def _num_rows(slices: Iterable[parts.Slice]) -> int:
    return sum(part.stop - part.start for part in slices)


def _blocks(uri: DatasetURI, slices: Sequence[parts.Slice], shape: tuple[int, int, int]) -> Iterator[Block]:
    """The rows of `slices` in their order."""
    for table in parts.read_ahead(uri, slices):
        pixels, labels = images.to_arrays(table, shape)
        assert labels is not None
        yield pixels, labels


def _tensors(blocks: Iterable[Block], *, num_rows: int, shape: tuple[int, int, int]) -> Batch:
    """The `num_rows` rows of all `blocks`, copied once, as they come."""
    pixels, labels = np.empty((num_rows, *shape), np.uint8), np.empty(num_rows, np.int64)
    start = 0
    for some, their in blocks:
        here = slice(start, start + len(their))
        pixels[here], labels[here] = some, their
        start = here.stop
    assert start == num_rows, "a row was lost on the way"
    return torch.from_numpy(pixels), torch.from_numpy(labels)
