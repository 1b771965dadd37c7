"""Tools for the lines of the table: the data, the stages as jobs, and whole runs of the command line."""

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

import torch

from storage import manifest, tables
from storage.uri import CheckpointURI, DatasetURI, PredictionsURI, Root
from tasks.jobs.spec import PredictSpec, PreprocessSpec, scratch_of
from tasks.jobs.train import attempts
from tasks.learning import checkpoint, images, recipes, training_state
from tasks.learning.loaders import ResidentLoader
from tasks.learning.loop import Trainer
from tasks.learning.modeling import Classifier, ModelSpec, resolve_precision
from tasks.learning.recipes import Recipe
from tasks.learning.sources import Split
from tasks.runners.runner import Runner
from tasks.runners.session import session
from tests.benchmarks import data
from tests.benchmarks.arm import Arm
from tests.benchmarks.ratios import Target
from tests.runs import CHECKOUT, Run

_DAY_S = 24 * 3600.0


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
        self._count = 0

    @property
    def recipe(self) -> Recipe:
        """The recipe to train; one epoch only with `--quick`."""
        name = "mnist-sample-resnet18" if self.source == data.SAMPLE else "mnist-resnet18"
        return recipes.override(recipes.load(name), {"epochs": 1, "accuracy_floor": 0.0} if self.quick else {})

    @cached_property
    def splits(self) -> dict[str, Split]:
        """Train and test split as they came."""
        return data.load(self.source)

    @cached_property
    def raw(self) -> DatasetURI:
        """A raw dataset of them."""
        return self.write_raw(self.splits)

    @cached_property
    def prepared(self) -> DatasetURI:
        """A prepared dataset of them."""
        with session(self.root, wanted=True, workers=None) as cluster:
            return self.preprocess(cluster, self.raw)

    @cached_property
    def untrained(self) -> CheckpointURI:
        """A model of the recipe that has learned next to nothing."""
        uri = CheckpointURI(self.root.child(f"checkpoints/{self._fingerprinted()}"))
        commit_untrained(self.root, self.prepared, uri)
        return uri

    def full(self, target: Target) -> Target | None:
        """Return the target, which applies to the full data only; on less, the fixed start-up time dominates."""
        return None if self.quick or self.source == data.SAMPLE else target

    def fresh(self, name: str) -> Path:
        """Return a path that was never used before."""
        self._count += 1
        return self.folder / f"{name}-{self._count}"

    def write_raw(self, splits: dict[str, Split]) -> DatasetURI:
        """A committed raw dataset of `splits`."""
        return data.write_raw(self.root, splits, source=self.source, name=self._fingerprinted())

    def preprocess(self, cluster: Runner, raw: DatasetURI) -> DatasetURI:
        """Our preprocessing as a job."""
        uri = DatasetURI(self.root.child(f"datasets/prepared/{self._fingerprinted()}"))
        preprocess(cluster, self.root, raw, uri)
        return uri

    def predict(self, cluster: Runner, model: CheckpointURI, dataset: DatasetURI) -> PredictionsURI:
        """Our prediction of a test split as a job."""
        uri = PredictionsURI(self.root.child(f"predictions/{self._fingerprinted()}"))
        predict(cluster, self.root, model, dataset, uri)
        return uri

    def pipeline(self, storage: Path, *arguments: str, folder: Path, env: dict[str, str] | None = None) -> Run:
        """The command line with `arguments` and the benchmark's recipe, its Prefect's own files below `folder`."""
        changed = [f"--set={name}={value}" for name, value in recipes.changes(self.recipe).items()]
        asked = ("--recipe", self.recipe.name, *changed, "--storage", str(storage), "--json", *arguments)
        return Run(*asked, folder=folder, env=env)

    def module(self, name: str, *arguments: str) -> str:
        """What `python -m tests.benchmarks.<name>` printed."""
        command = [sys.executable, "-m", f"tests.benchmarks.{name}", *arguments]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(command)}:\n{done.stderr[-4000:]}")
        return done.stdout

    def _fingerprinted(self) -> str:
        self._count += 1
        return f"mnist-{self._count:012x}"


def commit_untrained(root: Root, prepared: DatasetURI, uri: CheckpointURI) -> None:
    """Commit a ResNet-18 that saw at most 512 of the `prepared` rows, as a training would."""
    image_shape = images.shape_of(manifest.load(prepared).columns["metadata"])
    recipe = dataclasses.replace(recipes.load("mnist-resnet18"), epochs=1, batch_size=64)
    device = torch.device("cpu")
    precision = resolve_precision(recipe.precision, device)
    few = tables.read_part(prepared, manifest.load(prepared).split("validation")[0]).slice(0, 512)
    pixels, labels = images.to_arrays(few, image_shape)
    assert labels is not None
    rows = torch.from_numpy(pixels.copy()), torch.from_numpy(labels.copy())
    classes = images.classes_of(manifest.load(prepared).columns["metadata"])
    spec = ModelSpec(model=recipe.model, image_shape=image_shape, classes=classes, mean=(128.0,), std=(74.0,))
    loader = ResidentLoader(rows, rows, seed=0, rank=0, device=device)
    trainer = Trainer(recipe, Classifier(spec), loader, precision=precision, device=device)
    scratch = scratch_of(root, uri)
    about = {"parameters": {}, "resolved": {"precision": precision}}
    history = [trainer.run_epoch(1)]
    snapshot = training_state.take(trainer, history, prepared=prepared.fingerprint, about=about)
    checkpoint.write(scratch.child("attempt-1/epoch-0001"), snapshot)
    attempts.commit(scratch, uri, prepared=prepared, num_rows=100, statistics={})


def preprocess(cluster: Runner, root: Root, raw: DatasetURI, uri: DatasetURI) -> None:
    """Our preprocessing as a job."""
    parameters = {"split_seed": 0, "validation_fraction": 0.1, "max_quarantined": 0.01}
    spec = PreprocessSpec(storage=root, deadline_s=_DAY_S, source=raw, target=uri, parameters=parameters)
    cluster.run("preprocess", spec)


def predict(cluster: Runner, root: Root, model: CheckpointURI, dataset: DatasetURI, uri: PredictionsURI) -> None:
    """Our prediction of a test split as a job."""
    spec = PredictSpec(
        storage=root,
        deadline_s=_DAY_S,
        model=model,
        source=dataset,
        target=uri,
        split="test",
        workers=None,
    )
    cluster.run("predict", spec)


def rate(measured: dict[str, float]) -> float:
    """Rows in a second."""
    return measured["rows"] / measured["seconds"]


def rate_of(arm: Arm, work: str) -> Callable[[], float]:
    """Asks `arm` for some `work` and gives its rows in a second."""
    return lambda: rate(arm.ask(work))


def seconds_of(arm: Arm, work: str) -> Callable[[], float]:
    """Asks `arm` for some `work` and gives its seconds."""
    return lambda: arm.ask(work)["seconds"]
