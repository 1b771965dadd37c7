"""Choice of one rank's loader, and the loader that streams any number of rows from their parts or from Ray Data."""

import dataclasses
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from storage import process
from storage.kinds import DatasetURI
from storage.manifest import Manifest
from storage.statistics import EpochMetrics
from storage.uri import URI
from tasks.jobs import dataset_parts
from tasks.jobs.dataset_parts import Slice
from tasks.learning import images
from tasks.learning.loaders import MapStyleLoader, ResidentLoader, moved, num_used, rows_of, to_device
from tasks.learning.loop import Batch, Loader, mixed_seed
from tasks.learning.recipes import Recipe
from tasks.learning.transforms import Transform

Shape = tuple[int, int, int]
"""Height, width and channels of an image."""
Block = tuple[np.ndarray, np.ndarray]
"""Images (uint8, BHWC) and labels (int64, (B,)), both read-only."""
WINDOW_ROWS = 32_768
"""Most rows among which the streaming loader shuffles, unless a window would have too few batches."""
_WINDOW_BYTES = 64 * 2**20
"""Most bytes of pixels among which it shuffles, unless a window would have too few batches."""
WINDOW_BATCHES = 16
"""Fewest batches among which it shuffles: in fewer, the rows of a part would meet again in the next epoch's batches."""
Windows = Callable[..., Iterator[Batch]]
"""Reader of rows with the parameters of `read_windows` from `split` to `device`."""
Report = Callable[[URI, list[EpochMetrics]], None]
"""Function that is called with the folder of a new checkpoint and the history so far."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class RankContext:
    """Environment of one rank: its place among the ranks, its device, its loader, and functions to report to."""

    rank: int
    """Rank, from 0."""
    world_size: int
    device: torch.device
    threads: int
    """Most threads to compute with; all ranks use the smallest value of any rank."""
    prepare: Callable[[DataLoader[Batch]], Iterable[Batch]]
    """Turns a DataLoader into one whose batches are on `device`."""
    report: Report
    """Called on every rank for each checkpoint, in order, after it is complete."""
    checkpoint_s: float
    """Seconds from the end of writing a checkpoint until the next one is due."""
    loader: str
    """Kind of loader: `resident`, `streaming`, one of these by memory (`auto`), `dataloader` or `ray-data`."""
    windows: Windows | None = None
    """Reads the rows of `ray-data`; None: this process reads them. The batches are the same."""
    cores: int = 0
    """Cores that decode the encoded images of all ranks; 0: not known."""
    beat: Callable[[], None] = lambda: None
    """Called at every sign of progress."""
    is_preempted: Callable[[], bool] = lambda: False
    """Called on every rank after each epoch: returns, for all ranks, whether one of their nodes is about to go away."""


def make_loader(recipe: Recipe, uri: DatasetURI, prepared: Manifest, context: RankContext) -> Loader:
    """Make the loader of one rank, with its batches on its device, for the dataset at `uri` described by `prepared`."""
    shape, rank, world_size = images.shape_of(prepared.columns["metadata"]), context.rank, context.world_size
    seed, splits = recipe.finetuning.seed, {split: prepared.split(split) for split in ("train", "validation")}

    def held(some: Sequence[Slice]) -> Batch:
        blocks = _blocks(dataset_parts.read_ahead(uri, some), shape, context.beat)
        return tensors(blocks, num_rows=sum(map(len, some)), shape=shape)

    if context.loader == "dataloader":
        return MapStyleLoader(
            *(held(dataset_parts.whole_files(listed)) for listed in splits.values()),
            seed=seed,
            rank=rank,
            world_size=world_size,
            prepare=context.prepare,
            pin_memory=context.device.type == "cuda",
        )
    train, validation = (
        dataset_parts.shard(splits[split], rank=rank, world_size=world_size, batch_size=batch_size)
        for split, batch_size in (("train", recipe.finetuning.batch_size), ("validation", None))
    )
    if context.loader == "resident":
        return ResidentLoader(held(train), held(validation), seed=seed, rank=rank, device=context.device)
    transform = Transform(recipe, shape) if dataset_parts.is_encoded(prepared) else None
    read = context.windows or partial(read_windows, uri=uri, transform=transform, threads=context.threads)
    windows = partial(read, shape=shape, device=context.device)
    window_rows = min(WINDOW_ROWS, _WINDOW_BYTES // math.prod(shape))
    return StreamingLoader(windows, train, validation, window_rows=window_rows, seed=seed, rank=rank)


class StreamingLoader:
    """Loader that reads its rows again in every epoch; holds a few windows, each shuffled by (seed, epoch, rank).

    The parts, too, come in another order in every epoch, so that a window has other rows; if all rows are one window,
    the batches are those of `ResidentLoader`. Rows that fill no batch are skipped: evenly from all windows, and
    different ones in every epoch.
    """

    def __init__(
        self,
        windows: Windows,
        train: Sequence[Slice],
        validation: Sequence[Slice],
        *,
        window_rows: int,
        seed: int,
        rank: int,
    ) -> None:
        self.windows, self.train, self.validation, self.window_rows = windows, train, validation, window_rows
        self.seed, self.rank = seed, rank
        self.num_rows = sum(map(len, train))

    def num_train_rows(self) -> int:
        return self.num_rows

    def train_batches(self, *, epoch: int, batch_size: int, steps: int | None = None) -> Iterator[Batch]:
        left_out = self.num_rows - num_used(self.num_rows, batch_size, steps)
        yield from _batches(self._chosen(epoch, batch_size, left_out), batch_size)

    def validation_batches(self, *, batch_size: int) -> Iterator[Batch]:
        size = max(1, self.window_rows // batch_size) * batch_size
        for pixels, labels in self.windows("validation", self.validation, size=size):
            yield from zip(pixels.split(batch_size), labels.split(batch_size), strict=True)

    def _chosen(self, epoch: int, batch_size: int, left_out: int) -> Iterator[tuple[Batch, Tensor]]:
        """Yield each window with the shuffled order of its rows, without `left_out` rows in total.

        Each window skips its share of these. Shares may be fractions of a row, so a random offset decides which windows
        round up: no row is skipped more often than others.
        """
        generator, other = (
            torch.Generator().manual_seed(mixed_seed(self.seed, epoch, self.rank, number)) for number in (1, 3)
        )
        carried = int(torch.randint(self.num_rows, (), generator=other))
        size = max(self.window_rows // batch_size, WINDOW_BATCHES) * batch_size
        slices = self.train
        if self.num_rows > size:
            slices = random.Random(mixed_seed(self.seed, epoch, self.rank, 4)).sample(slices, len(slices))
        for window in self.windows("train", slices, size=size, epoch=epoch):
            order = torch.randperm(len(window[1]), generator=generator)
            skipped, carried = divmod(carried + left_out * len(order), self.num_rows)
            yield window, moved(order[: len(order) - skipped], window[1].device)


def _batches(chosen: Iterable[tuple[Batch, Tensor]], size: int) -> Iterator[Batch]:
    """Yield full batches of the windows' rows; a batch may continue in the next window."""
    held: Batch | None = None
    for window, order in chosen:
        if held is not None:
            more = rows_of(window, order[: size - len(held[1])])
            order = order[len(more[1]) :]
            held = torch.cat([held[0], more[0]]), torch.cat([held[1], more[1]])
            if len(held[1]) < size:
                continue
            yield held
            held = None
        for some in order.split(size):
            if len(some) == size:
                yield rows_of(window, some)
            elif len(some):
                held = rows_of(window, some)


def read_windows(
    split: str,
    slices: Sequence[Slice],
    *,
    size: int,
    epoch: int | None = None,
    shape: Shape,
    device: torch.device,
    uri: DatasetURI,
    transform: Transform | None,
    threads: int,
) -> Iterator[Batch]:
    """Read rows in this process; a thread prepares the next window while one is in use.

    Args:
        split: Name of the split.
        slices: This rank's rows of it, in the order of the epoch.
        size: Rows of a window; the last may be smaller.
        epoch: Encoded images are augmented for it; None: decoded and resized only.
        shape: Height, width and channels of an image.
        device: Where the windows are to be.
        uri: URI of the dataset.
        transform: Transform of encoded images; None for pixels.
        threads: Number of threads that transform images.
    """
    tables = dataset_parts.read_ahead(uri, slices)
    if transform:
        tables = images.in_pieces(partial(transform, epoch=epoch), tables, threads=threads)
    windows = _windows(_blocks(tables, shape), size=size, shape=shape, device=device)
    prepared = process.in_threads(lambda _: next(windows, None), itertools.repeat(None), threads=1)
    return iter(lambda: next(prepared), None)


def _windows(blocks: Iterable[Block], *, size: int, shape: Shape, device: torch.device) -> Iterator[Batch]:
    if device.type == "cuda":
        torch.cuda.set_device(device)  # of this thread, which else would use the first GPU
    held, missing = list[Block](), size
    collected = partial(tensors, shape=shape, pin_memory=device.type == "cuda")
    for pixels, labels in blocks:
        while len(labels):
            held.append((pixels[:missing], labels[:missing]))
            pixels, labels = pixels[missing:], labels[missing:]
            missing -= len(held[-1][1])
            if missing == 0:
                yield to_device(device, collected(held, num_rows=size))
                held, missing = [], size
    if held:
        yield to_device(device, collected(held, num_rows=size - missing))


def _blocks(
    tables: Iterable[pa.Table], shape: tuple[int, int, int], beat: Callable[[], None] = lambda: None
) -> Iterator[Block]:
    for table in tables:
        beat()
        pixels, labels = images.to_arrays(table, shape)
        assert labels is not None
        yield pixels, labels


def tensors(blocks: Iterable[Block], *, num_rows: int, shape: Shape, pin_memory: bool = False) -> Batch:
    """Copy the `num_rows` rows of all `blocks`, in order, into tensors (uint8 BHWC, int64).

    In pinned memory, torch reuses that of earlier tensors of the same size as soon as they are on the GPU: two windows
    take turns.
    """
    # NumPy takes huge pages: to fill memory of torch takes three times as long.
    pixels, labels = map(torch.from_numpy, (np.empty((num_rows, *shape), np.uint8), np.empty(num_rows, np.int64)))
    if pin_memory:
        pixels, labels = (torch.empty_like(rows, pin_memory=True) for rows in (pixels, labels))
    start = 0
    for some, their in blocks:
        place = slice(start, start + len(their))
        pixels.numpy()[place], labels.numpy()[place] = some, their
        start = place.stop
    assert start == num_rows, "a row was lost on the way"
    return pixels, labels
