"""`make bench`: whole runs of the command line beside a hand-written script, and how soon they train."""

import argparse
import contextlib
import dataclasses
import importlib.metadata
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median

from storage import manifest
from storage.kinds import CHECKPOINT, CheckpointURI, DatasetURI
from tasks.learning import recipes, sources
from tasks.learning.downloading import mirror_address
from tasks.learning.sources.mnist_sample import FOLDER
from tests.faults import injection
from tests.faults.history import History, step
from tests.runs import CHECKOUT, Run, await_that

SAMPLE = "sample"
"""The mirror that is the sample, which comes with the project."""
_EPILOG = """\
The ratio is the median over pairs of alternating runs: how many times the script's time the pipeline takes.
Use an otherwise idle machine. Targets apply to all of MNIST: on the sample, start-up takes most of the time."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ratio:
    """One line of the table."""

    what: str
    ours: Sequence[float]
    """One figure for each pair."""
    other: Sequence[float] = ()
    """Figures of the script; empty if the line is about the pipeline alone."""
    unit: str
    at_most: float
    """Target of the ratio, or of the figure where there is no other side."""

    @property
    def ratios(self) -> list[float]:
        """For each pair, how many times the other side's time the pipeline takes."""
        pairs = zip(self.ours, self.other or [1.0] * len(self.ours), strict=True)
        return [other / mine if self.unit.endswith("/s") else mine / other for mine, other in pairs]

    @property
    def cells(self) -> tuple[str, ...]:
        """The cells of its row."""
        figures = [f"{median(values):,.4g}" if values else "" for values in (self.ours, self.other)]
        spread = f"{min(self.ratios):.3g} to {max(self.ratios):.3g}"
        verdict = "met" if median(self.ratios) <= self.at_most else "not met"
        return (self.what, *figures, self.unit, f"{median(self.ratios):.3g}", spread, f"<= {self.at_most:g}", verdict)


class Bench:
    """Where both sides work, and on what."""

    def __init__(self, folder: Path, *, mirror: str, quick: bool) -> None:
        self.folder = folder
        self.address = FOLDER.as_uri() + "/" if mirror == SAMPLE else mirror_address(mirror)
        self.recipe = recipes.load("mnist-sample-resnet18" if mirror == SAMPLE else "mnist-resnet18")
        if quick:
            self.recipe = recipes.override(self.recipe, {"epochs": 1, "minimum": 0.0})

    def fresh(self) -> Path:
        """Return an empty folder."""
        return Path(tempfile.mkdtemp(dir=self.folder))

    @contextlib.contextmanager
    def pipeline(self, storage: Path, *arguments: str, env: dict[str, str] | None = None) -> Iterator[Run]:
        """A run of the command line that is ended, if it has not, with the context."""
        changes = [f"--set=epochs={self.recipe.finetuning.epochs}", f"--set=minimum={self.recipe.gate.minimum}"]
        words = ["--recipe", self.recipe.name, *changes, "--storage", str(storage), "--mirror", self.address, "--json"]
        run = Run(*words, *arguments, folder=self.fresh(), env=env)
        try:
            yield run
        finally:
            run.process.terminate()
            run.process.wait()
            await_that(lambda: not run.processes())  # Ray and Prefect's server end after it

    def plain(self) -> tuple[float, float]:
        """Run the hand-written script; return its seconds, and images a second of its training steps."""
        begun, training = time.perf_counter(), self.recipe.finetuning
        command = [sys.executable, "-m", "benchmarks.plain", "--mirror", self.address.rstrip("/")]
        command += ["--out", str(self.fresh()), "--epochs", str(training.epochs)]
        command += ["--batch-size", str(training.batch_size)]
        printed = subprocess.run(command, cwd=CHECKOUT, stdout=subprocess.PIPE, text=True, check=True).stdout
        rate = median(float(rate) for rate in re.findall(r"images/s (\S+)", printed))
        return time.perf_counter() - begun, rate

    def ours(self) -> tuple[float, float, float, float]:
        """Run the command line from nothing.

        Returns:
            Its seconds; images a second of its training steps; the share of an epoch that waits for data; and the
            seconds from a second command to its first step. That command has another seed, and only the raw data.
        """
        storage, begun = self.fresh(), time.perf_counter()
        with self.pipeline(storage) as run:
            uris = run.result()["uris"]
            seconds = time.perf_counter() - begun
        rows = sum(file.rows or 0 for file in manifest.load(DatasetURI(uris["prepared"])).split("train"))
        per_epoch = rows // self.recipe.finetuning.batch_size * self.recipe.finetuning.batch_size
        history = manifest.load(CheckpointURI(uris["checkpoint"])).statistics_of(CHECKPOINT).history
        rate = median(per_epoch / epoch.train_s for epoch in history)
        wait = median(epoch.data_wait_s / epoch.seconds for epoch in history)
        shutil.rmtree(storage / "datasets" / "prepared")
        events, begun = History(self.fresh() / "history"), time.time()
        with self.pipeline(storage, "--set=seed=1", env=injection.environment(events.path)) as run:
            await_that(lambda: events.has(step) or run.process.poll() is not None)
            first_step = float(next(event["s"] for event in events.events() if step(event))) - begun
        shutil.rmtree(storage)
        return seconds, rate, wait, first_step


def measure(bench: Bench, *, pairs: int) -> list[Ratio]:
    """Run both sides in turn, each first in every other pair, so that a drift of the machine meets both alike."""
    ours, plain = list[tuple[float, float, float, float]](), list[tuple[float, float]]()
    for pair in range(pairs):
        if pair % 2:
            plain.append(bench.plain())
        ours.append(bench.ours())
        if pair % 2 == 0:
            plain.append(bench.plain())
    seconds, rates, waits, first_steps = zip(*ours, strict=True)
    plain_seconds, plain_rates = zip(*plain, strict=True)
    return [
        Ratio(what="the whole command, from nothing", ours=seconds, other=plain_seconds, unit="s", at_most=1.3),
        Ratio(what="training steps of these runs", ours=rates, other=plain_rates, unit="images/s", at_most=1.03),
        Ratio(what="waiting for data / epoch", ours=waits, unit="", at_most=0.01),
        Ratio(what="from the command to the first step, raw data there", ours=first_steps, unit="s", at_most=30),
    ]


def markdown(ratios: Sequence[Ratio]) -> str:
    """The table."""
    titles = ("what", "pipeline", "script", "", "times the time", "of the pairs", "target", "")
    rows = [titles, ("---", "---:", "---:", "---", "---:", "---:", "---:", "---"), *(ratio.cells for ratio in ratios)]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__, epilog=_EPILOG)
    add = options.add_argument
    add("--quick", action="store_true", help="a few minutes: the sample, one epoch, one pair")
    add("--repeat", metavar="N", type=int, help="pairs of runs (default: 3; with --quick 1)")
    add("--mirror", metavar="URL_OR_DIR", help="mirror or folder of MNIST, or 'sample' (default: MNIST's first mirror)")
    return options


def main() -> None:
    """Measure and print the table."""
    arguments = parser().parse_args()
    mirror = arguments.mirror or (SAMPLE if arguments.quick else sources.load("mnist").mirrors[0])
    (cpu, *_) = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) or [platform.machine()]
    versions = ", ".join(f"{name} {importlib.metadata.version(name)}" for name in ("ray", "torch", "prefect"))
    print(f"{os.cpu_count()} x {cpu}, {versions}, load {os.getloadavg()}", flush=True)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        os.environ["PREFECT_HOME"] = str(Path(folder, "prefect"))
        bench = Bench(Path(folder), mirror=mirror, quick=arguments.quick)
        print(markdown(measure(bench, pairs=arguments.repeat or (1 if arguments.quick else 3))))


if __name__ == "__main__":
    main()
