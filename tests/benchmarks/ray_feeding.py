"""Effect of each change to a tutorial's data loading: `python -m tests.benchmarks.ray_feeding --mirror FOLDER`.

Alternates between the ways of `docs/from-ray-tutorials.md` and all loaders, over the same rows, without a model.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import torch
from ray.data.collate_fn import ArrowBatchCollateFn

from storage import manifest
from storage.uri import DatasetURI, Root
from tasks.jobs import dataset_parts, datasource
from tasks.jobs.train import make_loader
from tasks.jobs.train.ray_loader import RayDataRows
from tasks.learning import images, recipes
from tests.benchmarks import data, ray_tutorial
from tests.benchmarks.store import Store
from tests.jobs.raw import reader

_BATCH = 128
_SHAPE = (28, 28, 1)
Pass = Callable[[], Iterator[Any]]
"""Gives the labels of every batch of one pass."""


class Uint8(ArrowBatchCollateFn):
    """Raw pixels as tensors, as they lie in memory."""

    def __call__(self, batch: pa.Table) -> Any:
        pixels, labels = images.to_arrays(batch, _SHAPE)
        assert labels is not None
        return make_loader.tensors([(pixels, labels)], num_rows=len(labels), shape=_SHAPE)


def in_batches(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """What `to_tensor` does to one row, done to many."""
    pixels = np.stack([np.stack(list(image)) for image in batch["image"]]).astype(np.float32)
    return {"image": (pixels[:, None] / 255 - 0.5) / 0.5, "label": batch["label"]}


def ways(nested: Path, uri: DatasetURI) -> dict[str, Pass]:
    """Each way of feeding, the tutorial's first."""
    prepared = manifest.load(uri)
    train = prepared.split("train")
    lists = ray.data.read_parquet(str(nested))
    as_bytes = ray.data.read_parquet([uri.child(file.path) for file in train])
    rows = partial(RayDataRows, prefetch_batches=1, world_size=1)
    recipe = recipes.load("mnist-resnet18")

    def loader(kind: str) -> Pass:
        share = reader(kind, rows=rows if kind == "ray-data" else None)
        rows_loader = make_loader.make_loader(recipe, uri, prepared, share)
        return lambda: (labels for _, labels in rows_loader.train_batches(epoch=1, batch_size=_BATCH))

    def torch_batches(dataset: Any, **how: Any) -> Pass:
        def labels() -> Iterator[Any]:
            for batch in dataset.iter_torch_batches(batch_size=_BATCH, **how):
                yield batch["label"] if isinstance(batch, dict) else batch[1]

        return labels

    checked = datasource.dataset(uri, dataset_parts.whole_files(train))
    return {
        "nested lists, `map` of each row to floats": torch_batches(lists.map(ray_tutorial.to_tensor)),
        "nested lists, `map_batches` to floats": torch_batches(lists.map_batches(in_batches)),
        "raw bytes, no map, uint8 collation": torch_batches(as_bytes, collate_fn=Uint8()),
        "the same, read by the manifest and checked": torch_batches(checked, collate_fn=Uint8()),
        "shuffled: `local_shuffle_buffer_size=32768`": torch_batches(
            checked, collate_fn=Uint8(), local_shuffle_buffer_size=32_768, local_shuffle_seed=0
        ),
        "shuffled: windows, `loader=ray-data`": loader("ray-data"),
        "without Ray Data: `loader=streaming`": loader("streaming"),
        "without Ray Data: `loader=dataloader`": loader("dataloader"),
        "without Ray Data: `loader=resident`": loader("resident"),
    }


CPU = torch.device("cpu")


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.ray_feeding", description=__doc__)
    parser.add_argument("--mirror", default=data.SAMPLE, help="mirror or folder of MNIST's files (default: the sample)")
    parser.add_argument("--repeat", type=int, default=3, help="number of passes of each way (default: %(default)s)")
    options = parser.parse_args()
    split = data.load(options.mirror)["train"]
    os.environ.pop("RAY_ADDRESS", None)
    with tempfile.TemporaryDirectory(prefix="feeding-") as folder:
        ray.init(num_cpus=os.cpu_count(), include_dashboard=False, logging_level="ERROR")
        ray.data.DataContext.get_current().enable_progress_bars = False
        uri = Store(Root(folder)).write_raw(data.of(options.mirror), [split])
        nested = Path(folder, "nested.parquet")
        ray_tutorial.write(nested, split.images[:], split.labels)
        rates_of: dict[str, list[float]] = {}
        for _ in range(options.repeat):
            for name, batches in ways(nested, uri).items():
                begun = time.perf_counter()
                rows = sum(len(labels) for labels in batches())
                rates_of.setdefault(name, []).append(rows / (time.perf_counter() - begun))
        ray.shutdown()
    first = statistics.median(next(iter(rates_of.values())))
    print(f"{len(split.labels):,} rows, batches of {_BATCH}, median of {options.repeat} passes by turns\n")
    print("| feeding | rows/s | times the first |\n|---|---:|---:|")
    for name, rates in rates_of.items():
        print(f"| {name} | {statistics.median(rates):,.0f} | {statistics.median(rates) / first:,.1f} |")


if __name__ == "__main__":
    main()
