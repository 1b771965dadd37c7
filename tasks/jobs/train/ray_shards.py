"""Assignment of rows that Ray Data reads to training workers; no torch, which the assigning process does not need."""

from collections.abc import Mapping, Sequence

import ray
import ray.train
from ray.data import DataIterator, Dataset

from storage.manifest import File
from storage.uri import DatasetURI
from tasks.jobs import dataset_parts, datasource

_OBJECT_STORE_SHARE = 0.5
"""Share of the cluster's object store that the readers of all training workers may fill together."""


class RankShards(ray.train.DataConfig):
    """Ray Train data config that gives each rank its own rows: every row once, in a fixed order.

    Ray Train's own `DataConfig` splits with `equal=True`, which drops the rows that do not divide evenly. Here each
    rank reads its rows as a separate dataset: those of `tasks.jobs.dataset_parts.shard`, as with every other loader.

    Args:
        uri: URI of the prepared dataset.
        splits: Parts by split, for each split that the trainer gets.
        batch_size: Rows of a global batch, over all ranks.
    """

    def __init__(self, uri: DatasetURI, splits: Mapping[str, Sequence[File]], *, batch_size: int) -> None:
        super().__init__()
        self.uri, self.splits, self.batch_size = uri, splits, batch_size

    def datasets(self) -> dict[str, Dataset]:
        """Return each split as a whole, for `datasets=` of the trainer."""
        return {
            name: datasource.dataset(self.uri, dataset_parts.whole_files(listed))
            for name, listed in self.splits.items()
        }

    def configure(
        self, datasets: Mapping[str, Dataset], world_size: int, *_: object, **__: object
    ) -> list[dict[str, DataIterator]]:
        """Return for each rank an iterator over its rows of each of `datasets`; called by Ray Train."""
        return [{name: self._rows(name, rank, world_size) for name in datasets} for rank in range(world_size)]

    def _rows(self, name: str, rank: int, world_size: int) -> DataIterator:
        batch_size = self.batch_size if name == "train" else None
        shard = dataset_parts.shard(self.splits[name], rank=rank, world_size=world_size, batch_size=batch_size)
        return ordered(datasource.dataset(self.uri, shard), world_size).iterator()


def ordered(dataset: Dataset, world_size: int) -> Dataset:
    """Make `dataset` keep its order and its share of the object store, as one of `world_size` ranks."""
    options = dataset.context.execution_options
    options.preserve_order = True
    # Readers of different ranks do not know of each other; each would claim the whole object store.
    store = ray.cluster_resources().get("object_store_memory", 0) * _OBJECT_STORE_SHARE / world_size
    options.resource_limits = options.resource_limits.copy(object_store_memory=store)
    return dataset
