"""Results of benchmarks: rows committed as a raw dataset, and jobs that each make a result of their own."""

import os
from collections.abc import Iterable
from typing import Any, TypeVar

import numpy as np

from storage import tables
from storage.uri import URI, CheckpointURI, DatasetURI, PredictionsURI, Root
from tasks.jobs.ingest import downloads
from tasks.learning import images
from tasks.learning.recipes import Recipe
from tasks.learning.sources import Source, Split
from tasks.runners.runner import InProcessRunner, Runner
from tasks.stages import PredictSpec, PreprocessSpec, TrainSpec
from tests import committed

_DAY_S = 24 * 3600.0
_URI = TypeVar("_URI", bound=URI)


class Store:
    """A storage root, and jobs on it; each makes a result that nothing has made before."""

    def __init__(self, root: Root) -> None:
        self.root = root

    def write_raw(self, source: Source, splits: Iterable[Split]) -> DatasetURI:
        """Commit rows as a raw dataset, said to be of `source`."""
        uri = self._fresh(DatasetURI, "datasets/raw")
        parts = [part for split in splits for part in downloads.write_split(source, uri, split)]
        schema = tables.describe(images.schema(source.image_shape, source.classes))
        committed.commit(uri, "raw", parts, schema=schema)
        return uri

    def preprocess(self, runner: Runner, raw: DatasetURI) -> DatasetURI:
        """Our preprocessing as a job."""
        uri = self._fresh(DatasetURI, "datasets/prepared")
        parameters = {"split_seed": 0, "validation_fraction": 0.1, "max_quarantined": 0.01}
        spec = PreprocessSpec(storage=self.root, deadline_s=_DAY_S, source=raw, target=uri, parameters=parameters)
        runner.run("preprocess", spec)
        return uri

    def train(self, runner: Runner, prepared: DatasetURI, recipe: Recipe) -> CheckpointURI:
        """Our training as a job, in the process of the runner."""
        uri = self._fresh(CheckpointURI, "checkpoints")
        common: dict[str, Any] = {"storage": self.root, "deadline_s": _DAY_S, "parameters": {}, "workers": 0}
        runner.run("train", TrainSpec(source=prepared, target=uri, recipe=recipe, **common))
        return uri

    def predict(
        self, runner: Runner, model: CheckpointURI, dataset: DatasetURI, *, split: str = "test", **options: Any
    ) -> PredictionsURI:
        """Our prediction of a split as a job."""
        uri = self._fresh(PredictionsURI, "predictions")
        common: dict[str, Any] = {"storage": self.root, "deadline_s": _DAY_S, "split": split, "workers": None}
        runner.run("predict", PredictSpec(model=model, source=dataset, target=uri, **common | options))
        return uri

    def _fresh(self, kind: type[_URI], folder: str) -> _URI:
        return kind(self.root.child(f"{folder}/benchmark-{os.urandom(6).hex()}"))


def random_rows(store: Store, source: Source, **rows: int) -> DatasetURI:
    """A prepared dataset of random pixels, as if it were of `source`, with so many rows of each split."""
    random, splits = np.random.default_rng(0), []
    for name, count in rows.items():
        pixels = random.integers(0, 256, (count, *source.image_shape), dtype=np.uint8)
        splits.append(Split(name, pixels, np.arange(count) % len(source.classes)))
    return store.preprocess(InProcessRunner(), store.write_raw(source, splits))
