"""How fast each loader feeds one epoch in one thread: `python -m tests.benchmarks.loaders PREPARED [BATCH_SIZE]`.

They take turns, another one first in each round; the medians are over the rounds.
"""

import dataclasses
import statistics
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
import torch

from storage import manifest
from storage.uri import DatasetURI
from tasks.jobs import parts
from tasks.jobs.loaders import Feed, make_loader
from tasks.jobs.train_here import on_device
from tasks.learning import recipes
from tasks.learning.loop import Loader

LOADERS = ("resident", "streaming", "dataloader")
_ROUNDS = 7


def main() -> None:
    torch.set_num_threads(1)  # several wait for each other at every batch, for long when something else runs
    uri, batch_size = DatasetURI(sys.argv[1]), int((*sys.argv, "128")[2])
    prepared, recipe, device = manifest.load(uri), recipes.load("mnist-resnet18"), torch.device("cpu")

    def read(split: str) -> Iterator[pa.Table]:
        return parts.read_here(uri, parts.whole(prepared.split(split)))

    feed = Feed(shard=read, whole=read, prepare=lambda loader: on_device(device, loader))
    loaders: dict[str, Loader] = {}
    for kind in LOADERS:
        chosen = dataclasses.replace(recipe, loader=kind)  # type: ignore[arg-type]
        loaders[kind] = make_loader(chosen, prepared, feed, rank=0, world_size=1, device=device)
    rates: dict[str, list[float]] = {kind: [] for kind in LOADERS}
    for number in range(_ROUNDS + 1):
        for kind in LOADERS[number % 3 :] + LOADERS[: number % 3]:
            started = time.perf_counter()
            batches = loaders[kind].train_batches(epoch=number + 1, batch_size=batch_size)
            rows = sum(len(labels) for _, labels in batches)
            if number:  # the first one warms up
                rates[kind].append(rows / (time.perf_counter() - started))
    for kind in LOADERS:
        ratio = statistics.median(one / other for one, other in zip(rates[kind], rates["resident"], strict=True))
        print(f"{kind:<11}{statistics.median(rates[kind]):>12,.0f} rows/s  {ratio:8.4f} of resident")


if __name__ == "__main__":
    main()
