"""Lines of the table: whole runs, their steps and first step, ingest, prediction."""

import contextlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.ratios import Ratio, in_turn
from benchmarks.store import Store, random_rows
from storage import manifest
from storage.kinds import CHECKPOINT, PREDICTIONS
from storage.uri import URI, DatasetURI, Root
from tasks.jobs.ingest.downloads import write_split
from tasks.learning import images, recipes, sources
from tasks.learning.downloading import mirror_address
from tasks.learning.recipes import Recipe
from tasks.learning.sources import Split
from tasks.learning.sources.mnist_sample import FOLDER
from tasks.runners.runner import InProcessRunner
from tasks.runners.session import session
from tests.faults import injection
from tests.faults.history import History, step
from tests.mirrors import fetch
from tests.runs import CHECKOUT, Run, await_that

SAMPLE = "sample"
"""The mirror that is the sample, which comes with the project."""
_TIMES = 16
"""Multiple of the rows that ingest and prediction work on."""


class Bench:
    """Where the sides work, on how much, and how often."""

    def __init__(self, folder: Path, *, mirror: str, quick: bool, repeat: int | None = None) -> None:
        self.folder, self.is_sample, self.quick = folder, mirror == SAMPLE, quick
        self.address = FOLDER.as_uri() + "/" if self.is_sample else mirror_address(mirror)
        self.source = sources.load("mnist-sample" if self.is_sample else "mnist")
        self.pairs = repeat or (1 if quick else 3)
        self.store = Store(Root(str(folder / "root")))
        self._count = 0

    @property
    def recipe(self) -> Recipe:
        """The recipe to train; one epoch only with `--quick`."""
        return recipes.override(recipes.load(f"{self.source.name}-resnet18"), self._changes)

    @property
    def _changes(self) -> dict[str, Any]:
        return {"epochs": 1, "minimum": 0.0} if self.quick else {}

    @cached_property
    def splits(self) -> dict[str, Split]:
        """Train and test split, each with many times its rows."""
        with tempfile.TemporaryDirectory() as folder:
            fetch(self.source, Path(folder), self.address)
            return {split.name: _tiled(split) for split in self.source.read(Path(folder))}

    def full(self, target: float) -> float | None:
        """Return the target, which applies to the full data only; on less, the fixed start-up time dominates."""
        return None if self.quick or self.is_sample else target

    def fresh(self, name: str) -> Path:
        """Return a path that was never used before."""
        self._count += 1
        return self.folder / f"{name}-{self._count}"

    @contextlib.contextmanager
    def pipeline(
        self, storage: Path, *arguments: str, folder: Path, env: dict[str, str] | None = None
    ) -> Iterator[Run]:
        """A run of the command line that is ended, if it has not, with the context."""
        changes = [f"--set={name}={value}" for name, value in self._changes.items()]
        words = ["--recipe", self.recipe.name, *changes, "--storage", str(storage), "--mirror", self.address, "--json"]
        run = Run(*words, *arguments, folder=folder, env=env)
        try:
            yield run
        finally:
            run.process.terminate()
            run.process.wait()
            await_that(lambda: not run.processes())  # Ray and Prefect's server end after it

    def plain(self, *arguments: str) -> str:
        """What the hand-written script printed."""
        command = [sys.executable, "-m", "benchmarks.plain", *arguments]
        process = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
        if process.returncode:
            raise RuntimeError(f"{' '.join(command)}:\n{process.stderr[-4000:]}")
        return process.stdout


def _tiled(split: Split) -> Split:
    """Many times the rows, each time moved sideways by another number of pixels, so that none compress away."""
    moved = [np.roll(split.images[:], time, axis=2) for time in range(_TIMES)]
    return Split(name=split.name, images=np.concatenate(moved), labels=np.tile(split.labels, _TIMES))


def ingest(bench: Bench) -> Iterator[Ratio]:
    """From images in memory to Parquet on the disk."""
    split, out = bench.splits["train"], bench.fresh("ingest")
    rows = len(split.labels)

    def ours() -> None:
        write_split(bench.source, DatasetURI(str(out / "ours-000000000000")), split)

    def plain() -> None:
        table = images.to_table(split.labels, np.asarray(split.images), split.labels, classes=bench.source.classes)
        pq.write_table(table, out / "plain.parquet", compression="zstd", use_dictionary=["id", "label"])

    def rate(write: Any) -> float:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        started = time.perf_counter()
        write()
        return rows / (time.perf_counter() - started)

    rate(ours), rate(plain)
    mine, other = in_turn(lambda: rate(ours), lambda: rate(plain), pairs=5)
    what = f"ingest, {_TIMES}x: ours / plain `pq.write_table`"
    yield Ratio(what=what, ours=mine, other=other, unit="rows/s", at_most=1.11)


def prediction(bench: Bench) -> Iterator[Ratio]:
    """Many times the test set, from the start of the actors to the last file; the model has learned nothing."""
    store, recipe = bench.store, recipes.override(bench.recipe, {"epochs": 1, "batch_size": 64})
    model = store.train(InProcessRunner(), random_rows(store, bench.source, train=640, test=64), recipe)
    dataset = store.write_raw(bench.source, [bench.splits["test"]])
    rows = sum(file.rows or 0 for file in manifest.load(dataset).files)

    def ours() -> float:
        with session(wanted=True, workers=None) as cluster:
            predictions = store.predict(cluster, model, dataset)
        return rows / float(manifest.load(predictions).statistics_of(PREDICTIONS).seconds)

    def plain() -> float:
        printed = bench.plain("--test", f"{dataset}/test", "--out", str(bench.fresh("predictions")))
        return float(printed.split()[-1])

    mine, other = in_turn(ours, plain, pairs=bench.pairs)
    what = f"prediction, {_TIMES}x the test set: ours / plain loop and `pq.write_table`"
    yield Ratio(what=what, ours=mine, other=other, unit="rows/s", at_most=bench.full(1.18))


def whole(bench: Bench) -> Iterator[Ratio]:
    """The command line from nothing, against a script that does the same; how soon it trains again.

    The second command has another seed, and the prepared dataset, which seeds share, is deleted: only the raw data are
    there, everything after them is to be made.
    """
    our_steps, plain_steps, waits, until_step = list[float](), list[float](), list[float](), list[float]()

    def ours() -> float:
        storage, folder = bench.fresh("whole"), bench.fresh("run")
        begun = time.perf_counter()
        try:
            with bench.pipeline(storage, folder=folder) as run:
                uris = run.result()["uris"]
                took = time.perf_counter() - begun
            rate, share = _pace(URI(uris["prepared"]), URI(uris["checkpoint"]), bench.recipe)
            our_steps.append(rate)
            waits.append(share)
            until_step.append(_until_step(bench, storage, folder))
        finally:
            shutil.rmtree(storage, ignore_errors=True)
        return took

    def plain() -> float:
        begun = time.perf_counter()
        arguments = ["--mirror", bench.address.rstrip("/"), "--out", str(bench.fresh("plain"))]
        training = bench.recipe.training
        arguments += ["--epochs", str(training.epochs), "--batch-size", str(training.batch_size)]
        printed = bench.plain(*arguments)
        plain_steps.append(statistics.median(float(rate) for rate in re.findall(r"images/s (\S+)", printed)))
        return time.perf_counter() - begun

    mine, other = in_turn(ours, plain, pairs=bench.pairs)
    what = "the whole command, from nothing / one plain script"
    yield Ratio(what=what, ours=mine, other=other, unit="s", at_most=bench.full(1.3))
    what = "training steps of these runs: ours / plain"
    yield Ratio(what=what, ours=our_steps, other=plain_steps, unit="images/s", at_most=bench.full(1.03))
    yield Ratio(what="waiting for data / epoch", ours=waits, unit="", at_most=0.01)
    what = "cold start: from the command to the first step, raw data and Prefect's database at hand"
    yield Ratio(what=what, ours=until_step, unit="s", at_most=30)


def _pace(prepared: URI, checkpoint: URI, recipe: Recipe) -> tuple[float, float]:
    """Images in a second of a training's steps, and the share of an epoch that waits for data; medians of epochs."""
    rows = sum(file.rows or 0 for file in manifest.load(prepared).split("train"))
    per_epoch = rows // recipe.training.batch_size * recipe.training.batch_size
    history = manifest.load(checkpoint).statistics_of(CHECKPOINT).history
    rate = statistics.median(per_epoch / epoch.train_s for epoch in history)
    return rate, statistics.median(epoch.data_wait_s / epoch.seconds for epoch in history)


def _until_step(bench: Bench, storage: Path, folder: Path) -> float:
    """Seconds from a command to its first training step, with nothing but the raw data there."""
    shutil.rmtree(storage / "datasets" / "prepared")
    history, begun = History(bench.fresh("history")), time.time()
    with bench.pipeline(storage, "--set=seed=1", folder=folder, env=injection.environment(history.path)) as run:
        await_that(lambda: history.has(step) or run.process.poll() is not None)
        assert run.process.poll() is None, run.log.read_text()[-4000:]
        return float(next(event["s"] for event in history.events() if step(event))) - begun
