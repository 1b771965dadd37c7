"""Source of rows that Ray Data reads for a training worker, a window at a time, with `iter_torch_batches`."""

import dataclasses
from collections.abc import Iterator

import pyarrow as pa
import ray
from ray.data import Dataset
from ray.data.collate_fn import ArrowBatchCollateFn

from tasks.jobs import dataset_parts, datasource
from tasks.jobs.train.make_loader import RowSource, tensors
from tasks.learning import images
from tasks.learning.loop import Batch
from tasks.learning.transforms import Transform

_OBJECT_STORE_SHARE = 0.5
"""Share of the cluster's object store that the readers of all training workers may fill together."""


@dataclasses.dataclass(frozen=True)
class RayDataRows(RowSource):
    """Rows of this rank that Ray Data's tasks read, and if encoded decode and augment, anywhere in the cluster.

    The worker makes the dataset again for every pass, because the order of the parts and the augmentation depend on the
    epoch. Ray Data prepares the next window meanwhile. The loader shuffles each window, as for `streaming`: the order
    from `local_shuffle_buffer_size` would depend on how blocks are cut.
    """

    world_size: int

    def windows(
        self, split: str, *, size: int, epoch: int | None = None, shuffle_seed: int | None = None
    ) -> Iterator[Batch]:
        rows = datasource.dataset(self.uri, dataset_parts.shuffled(self.slices(split), shuffle_seed))
        if self.transform is not None:
            rows = rows.map_batches(
                _transformed,
                batch_size=None,
                batch_format="pyarrow",
                zero_copy_batch=True,
                fn_kwargs={"transform": self.transform, "epoch": epoch},
            )
        _limit(rows, self.world_size)
        yield from rows.iter_torch_batches(
            batch_size=size,
            device=str(self.device),
            collate_fn=_ToTensors(self.shape),
            pin_memory=self.device.type == "cuda",
        )


def _limit(rows: Dataset, world_size: int) -> None:
    """Make `rows` keep their order and their share of the object store, as those of one of `world_size` ranks."""
    options = rows.context.execution_options
    options.preserve_order = True
    # Readers of different ranks do not know of each other; each would claim the whole object store.
    store = ray.cluster_resources().get("object_store_memory", 0) * _OBJECT_STORE_SHARE / world_size
    options.resource_limits = options.resource_limits.copy(object_store_memory=store)


def _transformed(table: pa.Table, *, transform: Transform, epoch: int | None) -> pa.Table:
    return transform(table, epoch=epoch).replace_schema_metadata(None)


class _ToTensors(ArrowBatchCollateFn):
    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.shape = shape

    def __call__(self, batch: pa.Table) -> Batch:
        pixels, labels = images.to_arrays(batch, self.shape)
        assert labels is not None
        return tensors([(pixels, labels)], num_rows=len(labels), shape=self.shape)
