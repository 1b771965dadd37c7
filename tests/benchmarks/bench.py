"""Tools for the lines of the table: the data, the stages as jobs, and whole runs of the command line."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import numpy as np

from storage.uri import CheckpointURI, DatasetURI, Root
from tasks.learning import recipes, sources
from tasks.learning.recipes import Recipe
from tasks.learning.sources import Source, Split
from tasks.runners.runner import InProcessRunner
from tasks.runners.session import session
from tests.benchmarks import data
from tests.benchmarks.arm import Arm
from tests.benchmarks.ratios import Target
from tests.benchmarks.store import Store
from tests.runs import CHECKOUT, Run


class Bench:
    """Where the arms work, on how much, and how often."""

    def __init__(self, folder: Path, *, source: str, quick: bool, repeat: int | None = None) -> None:
        self.folder, self.source, self.quick = folder, source, quick
        self.pairs = 3 if quick else 5
        self.few_pairs = repeat or (1 if quick else 3)
        """Of what takes a minute or more."""
        self.steps = 16 if quick else 100
        """Of an epoch in which only the pace of its steps counts."""
        self.root = Root(str(folder / "root"))
        self.store = Store(self.root)
        self._count = 0

    @property
    def recipe(self) -> Recipe:
        """The recipe to train; one epoch only with `--quick`."""
        name = "mnist-sample-resnet18" if self.source == data.SAMPLE else "mnist-resnet18"
        return recipes.override(recipes.load(name), {"epochs": 1, "minimum": 0.0} if self.quick else {})

    @cached_property
    def splits(self) -> dict[str, Split]:
        """Train and test split as they came."""
        return data.load(self.source)

    @cached_property
    def prepared(self) -> DatasetURI:
        """A prepared dataset of them."""
        raw = self.store.write_raw(data.of(self.source), self.splits.values())
        with session(self.root, wanted=True, workers=None) as cluster:
            return self.store.preprocess(cluster, raw)

    @cached_property
    def photos(self) -> DatasetURI:
        """A prepared dataset of random images of 64 x 64 pixels in color, enough for `steps` batches of 32."""
        source = dataclasses.replace(sources.load("cifar10"), image_shape=(64, 64, 3))
        return random_rows(self.store, source, num_train=40 * self.steps)

    @cached_property
    def untrained(self) -> CheckpointURI:
        """A model of the recipe that has learned next to nothing."""
        return untrained(self.store, data.of(self.source), self.recipe)

    def full(self, target: Target) -> Target | None:
        """Return the target, which applies to the full data only; on less, the fixed start-up time dominates."""
        return None if self.quick or self.source == data.SAMPLE else target

    def fresh(self, name: str) -> Path:
        """Return a path that was never used before."""
        self._count += 1
        return self.folder / f"{name}-{self._count}"

    def pipeline(self, storage: Path, *arguments: str, folder: Path, env: dict[str, str] | None = None) -> Run:
        """The command line with `arguments` and the benchmark's recipe, its Prefect's own files below `folder`."""
        changed = [f"--set={name}={value}" for name, value in recipes.changes(self.recipe).items()]
        words = ("--recipe", self.recipe.name, *changed, "--storage", str(storage), "--json", *arguments)
        return Run(*words, folder=folder, env=env)

    def module(self, name: str, *arguments: str) -> str:
        """What `python -m tests.benchmarks.<name>` printed."""
        command = [sys.executable, "-m", f"tests.benchmarks.{name}", *arguments]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}:\n{done.stderr[-4000:]}")
        return done.stdout


def untrained(store: Store, source: Source, recipe: Recipe) -> CheckpointURI:
    """A model that saw one epoch of a few hundred images of random pixels."""
    prepared = random_rows(store, source, num_train=640)
    return store.train(InProcessRunner(), prepared, recipes.override(recipe, {"epochs": 1, "batch_size": 64}))


def random_rows(store: Store, source: Source, *, num_train: int) -> DatasetURI:
    """A prepared dataset of random pixels, as if it were of `source`."""
    random, splits = np.random.default_rng(0), []
    for name, count in (("train", num_train), ("test", 64)):
        pixels = random.integers(0, 256, (count, *source.image_shape), dtype=np.uint8)
        splits.append(Split(name, pixels, np.arange(count) % len(source.classes)))
    return store.preprocess(InProcessRunner(), store.write_raw(source, splits))


def rate(measured: dict[str, float]) -> float:
    """Rows in a second."""
    return measured["rows"] / measured["seconds"]


def rate_of(arm: Arm, work: str) -> Callable[[], float]:
    """Asks `arm` for some `work` and gives its rows in a second."""
    return lambda: rate(arm.ask(work))


def seconds_of(arm: Arm, work: str) -> Callable[[], float]:
    """Asks `arm` for some `work` and gives its seconds."""
    return lambda: arm.ask(work)["seconds"]
