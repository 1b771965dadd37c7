"""What the lines of the table work with: the data, our stages as jobs, and whole runs of the command line."""

import subprocess
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path

from storage.uri import CheckpointURI, DatasetURI, PredictionsURI, Root
from tasks import plan as planning
from tasks.cluster import Cluster, session
from tasks.jobs.spec import JobSpec, PredictSpec, PreprocessSpec, TrainSpec
from tasks.learning import recipes
from tasks.learning.datasets import Split
from tasks.learning.recipes import Recipe
from tests.benchmarks import data
from tests.benchmarks.arm import Arm
from tests.benchmarks.ratios import Bar
from tests.runs import CHECKOUT, Run

_DAY_S = 24 * 3600.0


class Bench:
    """Where the arms work, on how much, and how often."""

    def __init__(self, folder: Path, *, source: str, quick: bool) -> None:
        self.folder, self.source, self.quick = folder, source, quick
        self.pairs = 3 if quick else 7
        self.few_pairs = 1 if quick else 3
        """Of what takes a minute or more."""
        self.root = Root(str(folder / "root"))
        self._count = 0

    @property
    def recipe(self) -> Recipe:
        """What is trained."""
        return recipes.load("mnist-sample-resnet18" if self.source == data.SAMPLE else "mnist-resnet18")

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
        target = DatasetURI(self.root.child(f"datasets/prepared/{self._fingerprinted()}"))
        with session(self.root, wanted=True, workers=None) as cluster:
            preprocess(cluster, self.root, self.raw, target)
        return target

    def fresh(self, name: str) -> Path:
        """A path that nothing was ever at."""
        self._count += 1
        return self.folder / f"{name}-{self._count}"

    def write_raw(self, splits: dict[str, Split]) -> DatasetURI:
        """A committed raw dataset of `splits`."""
        return data.write_raw(self.root, splits, source=self.source, name=self._fingerprinted())

    def train(self, cluster: Cluster, *, epochs: int) -> CheckpointURI:
        """Our training call as a job."""
        target = CheckpointURI(self.root.child(f"checkpoints/{self._fingerprinted()}"))
        spec = TrainSpec(
            storage=self.root,
            deadline_s=_DAY_S,
            prepared=self.prepared,
            checkpoint=target,
            runs=planning.scratch_of(self.root, target),
            recipe=recipes.override(self.recipe, {"epochs": epochs}).to_dict(),
            parameters={},
            workers=None,
        )
        run(cluster, "train", self.root, spec)
        return target

    def predict(self, cluster: Cluster, model: CheckpointURI, dataset: DatasetURI) -> PredictionsURI:
        """Our prediction of a test split as a job."""
        target = PredictionsURI(self.root.child(f"predictions/{self._fingerprinted()}"))
        predict(cluster, self.root, model, dataset, target)
        return target

    def pipeline(self, storage: Path, *arguments: str, env: dict[str, str] | None = None) -> Run:
        """The command line with `arguments` and the benchmark's recipe, started."""
        asked = ("--recipe", self.recipe.name, "--storage", str(storage), "--json", *arguments)
        return Run(*asked, folder=self.folder / "runs", env=env)

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


def preprocess(cluster: Cluster, root: Root, raw: DatasetURI, target: DatasetURI) -> None:
    """Our preprocessing as a job."""
    parameters = {"seed": 0, "validation_fraction": 0.1, "max_quarantined": 0.01}
    spec = PreprocessSpec(storage=root, deadline_s=_DAY_S, raw=raw, prepared=target, parameters=parameters)
    run(cluster, "preprocess", root, spec)


def predict(cluster: Cluster, root: Root, model: CheckpointURI, dataset: DatasetURI, target: PredictionsURI) -> None:
    """Our prediction of a test split as a job."""
    spec = PredictSpec(
        storage=root,
        deadline_s=_DAY_S,
        checkpoint=model,
        dataset=dataset,
        predictions=target,
        split="test",
        workers=None,
    )
    run(cluster, "predict", root, spec)


def run(cluster: Cluster, stage: str, root: Root, spec: JobSpec) -> None:
    """The job of `spec`, to its end."""
    cluster.run(stage, spec, target=spec.target, scratch=planning.scratch_of(root, spec.target))


def at_least(value: float) -> Bar:
    """A bar."""
    return Bar(value=value, at_least=True)


def at_most(value: float) -> Bar:
    """A bar."""
    return Bar(value=value, at_least=False)


def rate(measured: dict[str, float]) -> float:
    """Rows in a second."""
    return measured["rows"] / measured["seconds"]


def rate_of(arm: Arm, work: str) -> Callable[[], float]:
    """Asks `arm` for some `work` and gives its rows in a second."""
    return lambda: rate(arm.ask(work))


def seconds_of(arm: Arm, work: str) -> Callable[[], float]:
    """Asks `arm` for some `work` and gives its seconds."""
    return lambda: arm.ask(work)["seconds"]
