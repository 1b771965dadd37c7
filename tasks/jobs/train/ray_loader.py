"""Ray Data feeds Ray Train: the datasets that the trainer gets, and how each worker reads its shard."""

from collections.abc import Callable, Iterator, Sequence

import pyarrow as pa
import ray.train
import torch
from ray.data import DataIterator, Dataset
from ray.data.collate_fn import ArrowBatchCollateFn

from storage import process
from storage.kinds import DatasetURI
from storage.manifest import Manifest
from tasks.jobs import dataset_parts, ray_data
from tasks.jobs.dataset_parts import Slice
from tasks.jobs.train.make_loader import tensors
from tasks.learning import images
from tasks.learning.loop import Batch
from tasks.learning.recipes import Recipe
from tasks.learning.transforms import Transform

DATA_CONFIG = ray.train.DataConfig(datasets_to_split=[])
"""Each worker reads its own rows of the whole dataset: Ray Train's equal shards would leave out validation rows."""
_OBJECT_STORE_SHARE = 0.5
"""Share of the cluster's object store that the readers of all training workers may fill together."""


def datasets(uri: DatasetURI, prepared: Manifest, recipe: Recipe) -> dict[str, Dataset]:
    """Return `datasets=` of the trainer: training and validation rows, images that are files decoded and augmented."""
    read_parts = ray_data.RayData().read_parts
    rows = {split: read_parts(uri, prepared.split(split)) for split in ("train", "validation")}
    if not dataset_parts.is_encoded(prepared):
        return rows
    keywords = {"transform": Transform(recipe, images.shape_of(prepared.columns["metadata"]))}
    return {
        split: dataset.map_batches(_transformed, batch_format="pyarrow", fn_kwargs=keywords)
        for split, dataset in rows.items()
    }


def _transformed(table: pa.Table, *, transform: Transform) -> pa.Table:
    process.keep_memory()
    epoch = table[ray_data.EPOCH][0].as_py() if ray_data.EPOCH in table.column_names else None
    return transform(table, epoch=epoch).replace_schema_metadata(None)


def windows(
    split: str,
    slices: Sequence[Slice],
    *,
    size: int,
    epoch: int | None = None,
    shape: tuple[int, int, int],
    device: torch.device,
    world_size: int,
    get_shard: Callable[[str], DataIterator] = ray.train.get_dataset_shard,
) -> Iterator[Batch]:
    """Read rows as `make_loader.read_windows` does; Ray Data's tasks prepare the next window meanwhile.

    The worker tells each execution of its shard what to read, and the epoch. Ray's own `RandomSeedConfig` counts the
    executions of a process instead, so a resumed one would begin again. The loader shuffles each window: the order from
    `local_shuffle_buffer_size` would depend on how blocks are cut.
    """
    shard = get_shard(split)
    context = shard.get_context()
    context.set_config(ray_data.SLICES, slices)
    context.set_config(ray_data.EPOCH, epoch)
    options = context.execution_options
    options.preserve_order = True
    # Readers of different ranks do not know of each other; each would claim the whole object store.
    store = ray.cluster_resources().get("object_store_memory", 0) * _OBJECT_STORE_SHARE / world_size
    options.resource_limits = options.resource_limits.copy(object_store_memory=store)
    yield from shard.iter_torch_batches(
        batch_size=size,
        device=str(device),
        collate_fn=_ToTensors(shape),
        pin_memory=device.type == "cuda",
    )


class _ToTensors(ArrowBatchCollateFn):
    def __init__(self, shape: tuple[int, int, int]) -> None:
        self.shape = shape

    def __call__(self, batch: pa.Table) -> Batch:
        pixels, labels = images.to_arrays(batch, self.shape)
        assert labels is not None
        return tensors([(pixels, labels)], num_rows=len(labels), shape=self.shape)
