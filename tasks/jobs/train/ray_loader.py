"""Source of rows that Ray Data reads for a training worker, a window at a time, with `iter_torch_batches`."""

import dataclasses
from collections.abc import Iterator, Mapping

import pyarrow as pa
import torch
from ray.data import DataIterator
from ray.data.collate_fn import ArrowBatchCollateFn

from tasks.jobs.train.make_loader import tensors
from tasks.learning import images
from tasks.learning.loop import Batch


@dataclasses.dataclass(frozen=True)
class RayDataRows:
    """Rows of this rank's shards, read by Ray Data's tasks anywhere in the cluster.

    Every call of `windows` reads them again; Ray Data copies the next `prefetch_batches` windows to the device
    meanwhile. The loader shuffles each window, as for `streaming`: the order from `local_shuffle_buffer_size` would
    depend on how blocks are cut.
    """

    shards: Mapping[str, DataIterator]
    """Shard of each split."""
    shape: tuple[int, int, int]
    device: torch.device
    prefetch_batches: int

    def windows(self, split: str, *, size: int) -> Iterator[Batch]:
        yield from self.shards[split].iter_torch_batches(
            batch_size=size,
            prefetch_batches=self.prefetch_batches,
            device=str(self.device),
            collate_fn=_ToTensors(self.shape),
            pin_memory=self.device.type == "cuda",
        )


class _ToTensors(ArrowBatchCollateFn):
    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.shape = shape

    def __call__(self, batch: pa.Table) -> Batch:
        pixels, labels = images.to_arrays(batch, self.shape)
        assert labels is not None
        return tensors([(pixels, labels)], num_rows=len(labels), shape=self.shape)
