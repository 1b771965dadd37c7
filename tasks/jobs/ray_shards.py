"""Which rows Ray Data reads for which training worker. No torch: the process that hands out shards needs none."""

from collections.abc import Mapping, Sequence
from typing import Any

import ray
import ray.train
from ray.data import DataIterator, Dataset

from storage.manifest import File
from storage.uri import DatasetURI
from tasks.jobs import parts

_OBJECT_STORE_SHARE = 0.5
"""Of the cluster's object store, what the readers of all training workers may fill together."""


class RankShards(ray.train.DataConfig):
    """Give each rank of a training its own rows: every row once, in a fixed order, shares that differ by at most one.

    Ray Train's own `DataConfig` splits with `equal=True`, which drops the rows that do not divide evenly. The ranks'
    rows are those of `tasks.jobs.parts.shard`, as for every other loader, and each rank reads them as its own dataset.

    Args:
        uri: The prepared dataset.
        splits: The parts of each split that is handed to the trainer, by name.
    """

    def __init__(self, uri: DatasetURI, splits: Mapping[str, Sequence[File]]) -> None:
        super().__init__()
        self.uri, self.splits = uri, splits

    def datasets(self) -> dict[str, Dataset]:
        """Return each split as a whole, for `datasets=` of the trainer."""
        return {name: parts.read(self.uri, parts.whole(listed)) for name, listed in self.splits.items()}

    def configure(
        self, datasets: Mapping[str, Dataset], world_size: int, *_: Any, **__: Any
    ) -> list[dict[str, DataIterator]]:
        """Return for each rank an iterator over its rows of every one of `datasets`; Ray Train calls this."""
        return [{name: self._rows(name, rank, world_size) for name in datasets} for rank in range(world_size)]

    def _rows(self, name: str, rank: int, world_size: int) -> DataIterator:
        mine = parts.read(self.uri, parts.shard(self.splits[name], rank=rank, world_size=world_size))
        options = mine.context.execution_options
        options.preserve_order = True
        # Each rank's reading knows nothing of the others', and would take all of the object store for itself.
        store = ray.cluster_resources().get("object_store_memory", 0) * _OBJECT_STORE_SHARE / world_size
        options.resource_limits = options.resource_limits.copy(object_store_memory=store)
        return mine.iterator()
