"""Lines 9 to 12: whole runs of the command line, or of the flow."""

import contextlib
import json
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from storage.uri import CheckpointURI, DatasetURI
from tasks.learning import recipes
from tasks.learning.sources import Split
from tasks.runners.runner import Runner
from tasks.runners.session import session
from tests.benchmarks import data
from tests.benchmarks.arm import started
from tests.benchmarks.bench import Bench, at_most, seconds_of
from tests.benchmarks.ratios import Ratio, in_turn
from tests.faults import injection
from tests.faults.history import History
from tests.runs import Run, await_that, processes_with, repeatedly

_MARK = "BENCHMARK_GROWTH"
"""In the environment of every process whose memory is looked at."""


def orchestration(bench: Bench) -> Iterator[Ratio]:
    """9: the flow against the same functions called one after the other, for a minute.

    Uses a small model: with longer training steps, the overhead would be a smaller share and harder to measure.
    """
    arguments = ["--source", bench.source, "--folder", str(bench.fresh("orchestration"))]
    settings = recipes.changes(bench.recipe) | {"model": "small-cnn", "epochs": 12, "accuracy_floor": 0.0}
    arguments += ["--recipe", bench.recipe.name, "--settings", json.dumps(settings)]
    with started("orchestration", *arguments) as arm:
        ours, other = in_turn(seconds_of(arm, "flow"), seconds_of(arm, "functions"), pairs=bench.few_pairs)
    what = "orchestration of a small model: the flow / the same stages called directly"
    yield Ratio(number=9, what=what, ours=ours, other=other, unit="s", target=bench.full(at_most(1.02)))


def whole(bench: Bench) -> Iterator[Ratio]:
    """10 and 11: the command line from nothing, against a script that does the same; how soon it trains again.

    The second command has another seed, and the prepared dataset, which seeds share, is deleted: only the raw data are
    there, everything after them is to be made.
    """
    until_step: list[float] = []
    counted: list[float] = []

    def mine() -> float:
        storage, folder = bench.fresh("whole"), bench.fresh("run")
        begun = time.perf_counter()
        try:
            with _running(bench, storage, folder) as run:
                run.result()
                took = time.perf_counter() - begun
            shutil.rmtree(storage / "datasets" / "prepared")
            history, begun_at = History(bench.fresh("history")), time.time()
            env = injection.environment(history.path)
            with _running(bench, storage, folder, "--set=seed=1", env=env) as run:  # the raw data are there already
                await_that(lambda: _first_step(history) or run.process.poll() is not None)
                assert run.process.poll() is None, run.log.read_text()[-4000:]
                counted.append(_processes(run.process.pid))
                until_step.append(_first_step(history) - begun_at)
        finally:
            shutil.rmtree(storage, ignore_errors=True)
        return took

    def plain() -> float:
        begun = time.perf_counter()
        asked = ["--source", data.address(bench.source).rstrip("/"), "--out", str(bench.fresh("plain"))]
        recipe = bench.recipe
        bench.module("plain", *asked, "--epochs", str(recipe.epochs), "--batch-size", str(recipe.batch_size))
        return time.perf_counter() - begun

    ours, other = in_turn(mine, plain, pairs=bench.few_pairs)
    what = "the whole command, from nothing / one plain script"
    yield Ratio(number=10, what=what, ours=ours, other=other, unit="s", target=bench.full(at_most(1.3)))
    what = "cold start: from the command to the first step, raw data and Prefect's database at hand, "
    what += f"{statistics.median(counted):.0f} processes by then"
    ones = [1.0] * len(until_step)
    yield Ratio(number=11, what=what, ours=until_step, other=ones, unit="s", target=at_most(30))


def growth(bench: Bench) -> Iterator[Ratio]:
    """12: preprocess, an epoch and predict with a small model on 1, 4 and 16 times the data.

    To be quick the memory only: of seconds, so little data takes fewer than the start differs by from one to the next.
    """
    few = {name: Split(name, split.images[:640], split.labels[:640]) for name, split in bench.splits.items()}
    datasets = {} if bench.quick else {0: bench.write_raw(few)}
    for times in (4, 16) if bench.quick else (1, 4, 16):
        datasets[times] = bench.write_raw({name: data.tiled(split, times) for name, split in bench.splits.items()})
    took: dict[int, list[float]] = {times: [] for times in datasets}
    peak: dict[int, list[float]] = {times: [] for times in datasets}
    fed: dict[int, list[float]] = {times: [] for times in datasets}
    os.environ[_MARK] = str(os.getpid())

    def train(cluster: Runner, prepared: DatasetURI, loader: str) -> CheckpointURI:
        return bench.train(cluster, prepared, model="small-cnn", epochs=1, loader=loader)

    def stages(cluster: Runner, raw: DatasetURI) -> DatasetURI:
        prepared = bench.preprocess(cluster, raw)
        bench.predict(cluster, train(cluster, prepared, "streaming"), prepared)
        return prepared

    for _ in range(bench.few_pairs):
        prepared = {}
        with session(bench.root, wanted=True, workers=None) as cluster:
            if 0 in datasets:
                stages(cluster, datasets[0])  # the first of a Ray starts what stays for the others
            for times, raw in datasets.items():
                with _peak_memory() as held:
                    begun = time.perf_counter()
                    prepared[times] = stages(cluster, raw)
                    took[times].append(time.perf_counter() - begun)
                peak[times].append(held[0] / 2**20)
        # On a Ray of its own: it fills the object store, whose pages stay with Ray until it ends.
        with session(bench.root, wanted=True, workers=None) as cluster:
            for times, uri in prepared.items():
                with _peak_memory() as held:
                    train(cluster, uri, "ray-data")
                fed[times].append(held[0] / 2**20)
    if not bench.quick:
        ours = [sixteen - fixed for sixteen, fixed in zip(took[16], took[0], strict=True)]
        other = [one - fixed for one, fixed in zip(took[1], took[0], strict=True)]
        what = "growth: seconds for 16x / 1x, the fixed start subtracted"
        target = bench.full(at_most(16.8)) if min(other) > 0 else None
        yield Ratio(number=12, what=what, ours=ours, other=other, unit="s", target=target)
    what = "growth: peak memory of all processes and the object store, streaming, 16x / 4x"
    yield Ratio(number=12, what=what, ours=peak[16], other=peak[4], unit="MiB", target=at_most(1.25))
    what = "growth: the same of a training alone, ray-data, 16x / 4x"
    yield Ratio(number=12, what=what, ours=fed[16], other=fed[4], unit="MiB", target=None)


@contextlib.contextmanager
def _running(
    bench: Bench, storage: Path, folder: Path, *arguments: str, env: dict[str, str] | None = None
) -> Iterator[Run]:
    """A run of the command line that is ended, if it has not, with the context."""
    source = data.address(bench.source)
    run = bench.pipeline(storage, "--source", source, *arguments, folder=folder, env=env)
    try:
        yield run
    finally:
        run.process.terminate()
        run.process.wait()
        await_that(lambda: not run.processes())  # Ray and Prefect's server end after it


def _processes(parent: int) -> int:
    """How many there are below `parent`, itself counted."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            above = int(stat.read_text().rpartition(")")[2].split()[1])
            children.setdefault(above, []).append(int(stat.parent.name))
    below = [parent]
    for pid in below:
        below += children.get(pid, [])
    return len(below)


def _first_step(history: History) -> float:
    """When it was, in seconds since 1970; 0 while there is none."""
    return next((float(event["s"]) for event in history.events() if event["point"] == "step"), 0.0)


@contextlib.contextmanager
def _peak_memory() -> Iterator[list[float]]:
    """Bytes that all processes of this one's Ray held at most at once, what they share counted once."""
    most = [0.0]

    def look() -> None:
        held = 0
        for pid in processes_with(f"{_MARK}={os.environ[_MARK]}"):
            with contextlib.suppress(OSError):
                rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
                held += sum(int(line.split()[1]) for line in rollup.splitlines() if line.startswith("Pss:"))
        most[0] = max(most[0], held * 1024.0)

    with repeatedly(look, interval_s=0.5):
        yield most
