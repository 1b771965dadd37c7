"""Results of benchmarks: rows committed as a raw dataset, and jobs that each make a result of their own."""

import os
from collections.abc import Iterable
from typing import TypeVar

import numpy as np

from storage import files, tables
from storage.uri import URI, CheckpointURI, DatasetURI, PredictionsURI, Root
from tasks.jobs.ingest import downloads
from tasks.learning import images
from tasks.learning.recipes import Recipe
from tasks.learning.sources import Source, Split
from tasks.resources.scaling import ANY, Needs, needs_of
from tasks.runners.runner import InProcessRunner, Runner
from tasks.stages import Predict, Preprocess, Stage, Train
from tests import committed

_URI = TypeVar("_URI", bound=URI)


class Store:
    """A storage root, and jobs on it; each makes a result that nothing has made before."""

    def __init__(self, root: Root) -> None:
        self.root = root

    def write_raw(self, source: Source, splits: Iterable[Split]) -> DatasetURI:
        """Commit rows as a raw dataset, said to be of `source`."""
        uri = DatasetURI(self.root.child(f"datasets/raw/benchmark-{os.urandom(6).hex()}"))
        parts = [part for split in splits for part in downloads.write_split(source, uri, split)]
        schema = tables.describe(images.schema(source.image_shape, source.classes))
        committed.commit(uri, "raw", parts, schema=schema)
        return uri

    def preprocess(self, runner: Runner, raw: DatasetURI) -> DatasetURI:
        """Our preprocessing as a job."""
        return self._fresh(Preprocess(raw=raw), runner)

    def train(self, runner: Runner, prepared: DatasetURI, recipe: Recipe) -> CheckpointURI:
        """Our training as a job, in the process of the runner."""
        return self._fresh(Train(prepared=prepared, recipe=recipe, workers=0), runner, needs_of(recipe))

    def predict(
        self, runner: Runner, model: CheckpointURI, dataset: DatasetURI, *, split: str = "test", needs: Needs = ANY
    ) -> PredictionsURI:
        """Our prediction of a split as a job."""
        return self._fresh(Predict(checkpoint=model, dataset=dataset, split=split), runner, needs)

    def _fresh(self, stage: Stage[_URI], runner: Runner, needs: Needs = ANY) -> _URI:
        """Make the result of `stage`, which must not be there."""
        files.remove(stage.target)
        runner.run(stage, needs=needs)
        return stage.target


def random_rows(store: Store, source: Source, **rows: int) -> DatasetURI:
    """A prepared dataset of random pixels, as if it were of `source`, with so many rows of each split."""
    random, splits = np.random.default_rng(0), []
    for name, count in rows.items():
        pixels = random.integers(0, 256, (count, *source.image_shape), dtype=np.uint8)
        splits.append(Split(name, pixels, np.arange(count) % len(source.classes)))
    return store.preprocess(InProcessRunner(), store.write_raw(source, splits))
