"""Measure the recipes on one GPU."""

import argparse
import functools
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import torch
from PIL import Image

from benchmarks import gpu_photos
from storage import files, manifest, tables
from storage.kinds import CHECKPOINT, CheckpointURI, DatasetURI, PredictionsURI
from storage.statistics import EpochMetrics
from storage.uri import URI, Root
from tasks.jobs.ingest.downloads import write_split
from tasks.jobs.spec import JobSpec
from tasks.learning import downloading, images, recipes, sources
from tasks.learning.inference import Inference
from tasks.learning.recipes import Recipe
from tasks.learning.sources import Split
from tasks.resources import devices
from tasks.resources.needs import ANY, Limits, Needs, needs_of
from tasks.runners.runner import InProcessRunner
from tasks.stages import Predict, Preprocess, Stage, Train
from tests import committed
from tests.gpu import older_torch
from tests.mirrors import fetch
from tests.runs import CHECKOUT

_URI = TypeVar("_URI", bound=URI)
_SOURCE = sources.load("cifar10")
_WARM_UP, _EPOCHS = 2, 5
"""Epochs before those that count: the first ones choose algorithms, capture and compile; and those that count."""
_VIT, _RESNET = "cifar10-vit", "cifar10-resnet18"
_AIRBENCH = f"{CHECKOUT}/examples/cifar10_airbench.py:cifar10_airbench"
VARIANTS: dict[str, dict[str, str]] = {
    "as shipped": {},
    "eager": {"step": "eager", "compile": "off"},
    "graph": {"step": "graph", "compile": "off"},
    "compiled": {"step": "eager", "compile": "on"},
    "both": {"step": "graph", "compile": "on"},
}
"""Ways to launch a step; a graph only on a GPU."""
_DATA = "folder with cifar-10-binary.tar.gz, or with train/CLASS/ and test/CLASS/ of image files"


class Bench:
    """A folder to work in, and the images and recipes to measure with."""

    def __init__(
        self,
        folder: Path,
        *,
        data: Path | None = None,
        rows: int,
        num_predicted: int | None = None,
        published: Path | None = None,
        settings: dict[str, str],
    ) -> None:
        self.root = Root(str(folder / "root"))
        self.data, self.rows, self.num_predicted = data, rows, num_predicted or rows
        self.published, self.settings = published, settings
        self._device: Literal["cuda", "cpu"] = "cuda" if settings.get("device", "cuda") == "cuda" else "cpu"
        self.device = torch.device("cuda:0" if self._device == "cuda" else "cpu")

    def recipe(self, name: str, **changes: str | int) -> Recipe:
        """The recipe `name` with `changes` and then the settings of the command line."""
        return recipes.override(recipes.load(name), {"device": self.device.type, **changes, **self.settings})

    @cached_property
    def raw(self) -> DatasetURI:
        """CIFAR-10's rows, or random ones, as a raw dataset."""
        with tempfile.TemporaryDirectory() as folder:
            if self.data is None:
                return self._raw([_random_rows("train", self.rows), _random_rows("test", self.rows // 5)], "cifar10")
            if (self.data / "train").is_dir():
                return self._raw((_decoded_rows(self.data, name) for name in ("train", "test")), "cifar10")
            fetch(_SOURCE, Path(folder), downloading.mirror_address(str(self.data)))
            return self._raw(_SOURCE.read(Path(folder)), "cifar10")

    @cached_property
    def prepared(self) -> DatasetURI:
        """The same rows as a prepared dataset."""
        return self.make(Preprocess(raw=self.raw))

    @cached_property
    def many(self) -> DatasetURI:
        """So many rows to predict that a job's start does not count, as a raw dataset."""
        rows = _random_rows("train", min(self.num_predicted, 50_000))
        times = self.num_predicted // len(rows.labels)
        return self._raw([Split("train", np.concatenate([rows.images] * times), np.tile(rows.labels, times))], "many")

    def _raw(self, splits: Iterable[Split], name: str) -> DatasetURI:
        uri = DatasetURI(self.root.child(f"datasets/raw/{name}-0123456789ab"))
        parts = [part for split in splits for part in write_split(_SOURCE, uri, split)]
        committed.commit(uri, "raw", parts, schema=tables.describe(images.schema(_SOURCE.image_shape, _SOURCE.classes)))
        return uri

    def train(self, recipe: Recipe, limits: Limits = Limits()) -> tuple[CheckpointURI, tuple[EpochMetrics, ...]]:
        """A training job of `recipe`, and the history of its epochs."""
        uri = self.make(Train(prepared=self.prepared, recipe=recipe, workers=0), needs_of(recipe), limits)
        return uri, manifest.load(uri).statistics_of(CHECKPOINT).history

    def predict(self, model: CheckpointURI, dataset: DatasetURI, *, split: str) -> tuple[PredictionsURI, float]:
        """A prediction job, and its rows in a second."""
        begun = time.perf_counter()
        uri = self.make(Predict(checkpoint=model, dataset=dataset, split=split), Needs(device=self._device))
        return uri, manifest.load(uri).rows / (time.perf_counter() - begun)

    def make(self, stage: Stage[_URI], needs: Needs = ANY, limits: Limits = Limits()) -> _URI:
        """Make the result of `stage`, anew if it is there."""
        files.remove(stage.target)
        InProcessRunner().run(JobSpec(stage=stage, needs=needs, limits=limits))
        return stage.target


def _random_rows(split: str, count: int) -> Split:
    pixels = np.random.default_rng(0).integers(0, 256, (count, *_SOURCE.image_shape), dtype=np.uint8)
    return Split(split, pixels, np.arange(count) % len(_SOURCE.classes))


def _decoded_rows(folder: Path, split: str) -> Split:
    """Read and decode the images of a split from its class folders, as copies of CIFAR-10 have them."""
    paths = sorted((folder / split).glob("*/*"))
    names = sorted({path.parent.name for path in paths})
    pixels = np.stack([np.asarray(Image.open(path).convert("RGB")) for path in paths])
    return Split(split, pixels, np.array([names.index(path.parent.name) for path in paths]))


def epochs(bench: Bench, *, name: str) -> Iterator[str]:
    """An epoch of whole training jobs, with evaluation and checkpoints, launched in every way."""
    for variant, changes in VARIANTS.items():
        if changes.get("step") == "graph" and bench.device.type != "cuda":
            continue
        _, history = bench.train(bench.recipe(name, epochs=_WARM_UP + _EPOCHS, **changes))
        seconds = statistics.median(epoch.seconds for epoch in history[_WARM_UP:])
        waits = statistics.mean(epoch.data_wait_s + epoch.checkpoint_wait_s for epoch in history[_WARM_UP:])
        first = f"waits {waits:.2f} s; first epoch {history[0].seconds:.1f} s"
        yield f"{name}: job, one epoch, {variant}: {seconds:.4g} s ({first})"


def checkpoints(bench: Bench) -> Iterator[str]:
    """How long a checkpoint after every epoch, of 163 MiB, keeps the ViT's training waiting."""
    recipe = bench.recipe(_VIT, epochs=_WARM_UP + _EPOCHS)
    _, history = bench.train(recipe, Limits(checkpoint_s=0))
    waits = statistics.median(epoch.checkpoint_wait_s for epoch in history[_WARM_UP:])
    yield f"{_VIT}: checkpoint: {waits:.4f} s between two epochs"


def airbench(bench: Bench) -> Iterator[str]:
    """CIFAR-10 in seconds: the training job from its first epoch on, and its test accuracy."""
    uri, history = bench.train(bench.recipe(_AIRBENCH))
    seconds, all_s = (sum(epoch.train_s for epoch in history), sum(epoch.seconds for epoch in history))
    yield f"cifar10-airbench: training: {seconds:.1f} s ({all_s:.1f} s with evaluation and checkpoints)"
    if bench.data is not None:
        predictions, _ = bench.predict(uri, bench.prepared, split="test")
        table = tables.read_split(predictions, columns=["label", "prediction"])
        right = (table["label"].to_numpy() == table["prediction"].to_numpy()).mean()
        yield f"cifar10-airbench: test accuracy: {right:.2%}"


def prediction(bench: Bench) -> Iterator[str]:
    """Rows in a second: the job with its files, and the model alone with rows and results on the host."""
    for name in (_VIT, _RESNET):
        model, _ = bench.train(bench.recipe(name, epochs=1))
        _, rate = bench.predict(model, bench.many, split="train")
        yield f"{name}: prediction, job: {rate:,.0f} rows/s"
        pixels, _ = images.to_arrays(tables.read_split(bench.prepared, "train"), _SOURCE.image_shape)
        inference = Inference(model, threads=os.cpu_count() or 1, device=bench.device)
        inference.probabilities(pixels)
        begun = time.perf_counter()
        inference.probabilities(pixels)
        rate = len(pixels) / (time.perf_counter() - begun)
        yield f"{name}: prediction, model alone: {rate:,.0f} rows/s in {inference.precision}"


LINES: dict[str, Callable[[Bench], Iterator[str]]] = {
    "vit": functools.partial(epochs, name=_VIT),
    "resnet18": functools.partial(epochs, name=_RESNET),
    "checkpoints": checkpoints,
    "airbench": airbench,
    "prediction": prediction,
    "steps": gpu_photos.steps,
    "jpegs": gpu_photos.jpegs,
    "streaming": gpu_photos.streaming,
    "published": gpu_photos.published,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print each line; return 0, also if there is no GPU."""
    options = parser().parse_args(arguments)
    settings = dict(setting.partition("=")[::2] for setting in options.set)
    if settings.get("device", "cuda") == "cuda" and (trouble := devices.trouble()):
        print(f"skipped: no GPU to measure: {trouble}")
        return 0
    older_torch.adapt()
    with tempfile.TemporaryDirectory(prefix="gpu-bench-") as folder:
        bench = Bench(
            Path(folder),
            data=options.data,
            rows=options.rows,
            num_predicted=options.predict,
            published=options.published,
            settings=settings,
        )
        device = torch.cuda.get_device_name(bench.device) if bench.device.type == "cuda" else "CPU"
        print(f"{device}, {os.cpu_count()} CPUs, torch {torch.__version__}, load {os.getloadavg()}", flush=True)
        for name in options.only or LINES:
            for line in LINES[name](bench):
                print(line, flush=True)
    return 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    add = options.add_argument
    add("--data", metavar="DIR", type=Path, help=f"{_DATA} (default: random images)")
    add("--only", choices=LINES, action="append", default=[], help="only this line; repeatable")
    add("--rows", metavar="N", type=int, default=50_000, help="random training images (default: %(default)s)")
    add("--predict", metavar="N", type=int, help="rows to predict, random ones (default: as many as --rows)")
    add("--published", metavar="FILE", type=Path, help="published script to compare with: airbench94.py")
    tries = "change a field of every recipe; device=cpu tries the benchmark without a GPU"
    add("--set", metavar="FIELD=VALUE", action="append", default=[], help=tries)
    return options


if __name__ == "__main__":
    sys.exit(main())
