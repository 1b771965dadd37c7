"""Lines 9 to 11: whole runs of the command line, or of the flow."""

import contextlib
import json
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from tasks.learning import recipes
from tests.benchmarks import data
from tests.benchmarks.arm import started
from tests.benchmarks.bench import Bench, seconds_of
from tests.benchmarks.ratios import Ratio, at_most, in_turn
from tests.faults import injection
from tests.faults.history import History
from tests.runs import Run, await_that


def orchestration(bench: Bench) -> Iterator[Ratio]:
    """9: the flow against the same functions called one after the other, for a minute.

    Uses a small model: with longer training steps, the overhead would be a smaller share and harder to measure.
    """
    arguments = ["--mirror", bench.source, "--folder", str(bench.fresh("orchestration"))]
    settings = recipes.changes(bench.recipe) | {"model": "small-cnn", "epochs": 12, "minimum": 0.0}
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
                counted.append(len(run.processes()))
                until_step.append(_first_step(history) - begun_at)
        finally:
            shutil.rmtree(storage, ignore_errors=True)
        return took

    def plain() -> float:
        begun = time.perf_counter()
        arguments = ["--mirror", data.address(bench.source).rstrip("/"), "--out", str(bench.fresh("plain"))]
        training = bench.recipe.training
        arguments += ["--epochs", str(training.epochs), "--batch-size", str(training.batch_size)]
        bench.module("plain", *arguments)
        return time.perf_counter() - begun

    ours, other = in_turn(mine, plain, pairs=bench.few_pairs)
    what = "the whole command, from nothing / one plain script"
    yield Ratio(number=10, what=what, ours=ours, other=other, unit="s", target=bench.full(at_most(1.3)))
    what = "cold start: from the command to the first step, raw data and Prefect's database at hand, "
    what += f"{statistics.median(counted):.0f} processes by then"
    ones = [1.0] * len(until_step)
    yield Ratio(number=11, what=what, ours=until_step, other=ones, unit="s", target=at_most(30))


@contextlib.contextmanager
def _running(
    bench: Bench, storage: Path, folder: Path, *arguments: str, env: dict[str, str] | None = None
) -> Iterator[Run]:
    """A run of the command line that is ended, if it has not, with the context."""
    source = data.address(bench.source)
    run = bench.pipeline(storage, "--mirror", source, *arguments, folder=folder, env=env)
    try:
        yield run
    finally:
        run.process.terminate()
        run.process.wait()
        await_that(lambda: not run.processes())  # Ray and Prefect's server end after it


def _first_step(history: History) -> float:
    """When it was, in seconds since 1970; 0 while there is none."""
    return next((float(event["s"]) for event in history.events() if event["point"] == "step"), 0.0)
