"""Measure the CIFAR-10 recipes on one GPU, and compare the figures with their targets."""

import argparse
import dataclasses
import functools
import json
import os
import platform
import shutil
import statistics
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from benchmarks.store import Store, random_rows
from storage import manifest, tables
from storage.kinds import CHECKPOINT
from storage.statistics import EpochMetrics
from storage.uri import CheckpointURI, DatasetURI, PredictionsURI, Root
from tasks.learning import downloading, images, recipes, sources
from tasks.learning.inference import Inference
from tasks.learning.recipes import Recipe
from tasks.resources import devices
from tasks.resources.scaling import Needs
from tasks.runners.runner import InProcessRunner
from tests.mirrors import fetch
from tests.runs import CHECKOUT

NEEDS_DATA = "needs --data: accuracy on random images means nothing"
_ROWS = 50_000
"""Training rows of CIFAR-10."""
_SOURCE = sources.load("cifar10")
_WARM_UP = 2
"""Epochs before those that count: the first one chooses algorithms, captures and compiles."""
_VIT, _RESNET = "cifar10-vit", "cifar10-resnet18"
_AIRBENCH = f"{CHECKOUT}/examples/cifar10_airbench.py:cifar10_airbench"
_VARIANTS = {
    "eager": {},
    "graph": {"step": "graph"},
    "compiled": {"compile": "true"},
}
"""Ways to launch a step; a graph only on a GPU."""
_EPILOG = """\
The targets are for one H100 or H200, on which all lines should take about ten minutes. Use an otherwise idle GPU.
Targets apply only on a GPU, with all rows and without --set. The exit code is 1 if a target is missed or a line
failed, else 0, also if there is no GPU, which one line then says."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """One line of what was measured."""

    what: str
    value: float | None = None
    """None: not measured; `note` says why."""
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    note: str = ""

    @property
    def is_missed(self) -> bool:
        """Whether there is a value beyond its target."""
        if self.value is None:
            return False
        return self.value > (self.at_most or float("inf")) or self.value < (self.at_least or float("-inf"))

    def __str__(self) -> str:
        value = "not measured" if self.value is None else f"{self.value:,.4g} {self.unit}".strip()
        target = f"<= {self.at_most:g}" if self.at_most else f">= {self.at_least:g}" if self.at_least else ""
        verdict = f" ({target}) {'missed' if self.is_missed else 'met'}" if target and self.value is not None else ""
        return f"{self.what}: {value}{verdict} {self.note}".rstrip()


class Bench:
    """A folder to work in, and the images and recipes to measure with."""

    def __init__(
        self,
        folder: Path,
        *,
        data: Path | None = None,
        rows: int = _ROWS,
        epochs: int = 5,
        settings: dict[str, str] | None = None,
    ) -> None:
        self.store = Store(Root(str(folder / "root")))
        self.data, self.rows, self.epochs, self.settings = data, rows, epochs, settings or {}
        self.device = torch.device("cuda:0" if self.settings.get("device", "cuda") == "cuda" else "cpu")

    def target(self, value: float) -> float | None:
        """Return the target, which is set for a GPU, all rows and the recipes as they are."""
        return value if self.device.type == "cuda" and self.rows == _ROWS and not self.settings else None

    def recipe(self, name: str, **changes: str | int) -> Recipe:
        """The recipe `name` with `changes` and then the settings of the command line."""
        return recipes.override(recipes.load(name), {"device": self.device.type, **changes, **self.settings})

    @cached_property
    def prepared(self) -> DatasetURI:
        """CIFAR-10's rows, or random ones, as a prepared dataset."""
        if self.data is None:
            return random_rows(self.store, _SOURCE, train=self.rows, test=self.rows // 5)
        with tempfile.TemporaryDirectory() as folder:
            fetch(_SOURCE, Path(folder), downloading.mirror_address(str(self.data)))
            raw = self.store.write_raw(_SOURCE, _SOURCE.read(Path(folder)))
        return self.store.preprocess(InProcessRunner(), raw)

    def train(self, recipe: Recipe) -> tuple[CheckpointURI, tuple[EpochMetrics, ...]]:
        """A training job of `recipe`, and the history of its epochs."""
        uri = self.store.train(InProcessRunner(), self.prepared, recipe)
        return uri, manifest.load(uri).statistics_of(CHECKPOINT).history

    def predict(self, model: CheckpointURI, *, split: str) -> tuple[PredictionsURI, float]:
        """A prediction job, and its rows in a second."""
        needs = Needs(device="cuda" if self.device.type == "cuda" else "cpu")
        begun = time.perf_counter()
        uri = self.store.predict(InProcessRunner(), model, self.prepared, split=split, workers=0, needs=needs)
        return uri, manifest.load(uri).rows / (time.perf_counter() - begun)


def epochs(bench: Bench, *, name: str) -> Iterator[Measured]:
    """An epoch of whole training jobs, with evaluation and checkpoints, launched in every way."""
    for variant, changes in _VARIANTS.items():
        what = f"{name}: job, one epoch, {variant}"
        if "step" in changes and bench.device.type != "cuda":
            continue
        if "compile" in changes and (lacking := cannot_compile()):
            yield Measured(what=what, note=lacking)
            continue
        _, history = bench.train(bench.recipe(name, epochs=_WARM_UP + bench.epochs, **changes))
        seconds = statistics.median(epoch.seconds for epoch in history[_WARM_UP:])
        waits = [epoch.data_wait_s + epoch.checkpoint_wait_s for epoch in history[_WARM_UP:]]
        note = f"waits {statistics.mean(waits):.2f} s; first epoch {history[0].seconds:.1f} s"
        at_most = bench.target(2.0) if (name, variant) == (_VIT, "eager") else None
        yield Measured(what=what, value=seconds, unit="s", note=note, at_most=at_most)


def airbench(bench: Bench) -> Iterator[Measured]:
    """The training that is to reach 94% within seconds, as a job from its first epoch on."""
    recipe = bench.recipe(_AIRBENCH)
    uri, history = bench.train(recipe)
    seconds, all_s = (sum(epoch.train_s for epoch in history), sum(epoch.seconds for epoch in history))
    note = f"{recipe.training.epochs} epochs; {all_s:.1f} s with evaluation and checkpoints"
    at_most = bench.target(10.0)
    yield Measured(what="cifar10-airbench: training", value=seconds, unit="s", note=note, at_most=at_most)
    what = "cifar10-airbench: test accuracy"
    if bench.data is None:
        yield Measured(what=what, note=NEEDS_DATA)
        return
    predictions, _ = bench.predict(uri, split="test")
    table = tables.read_split(predictions, columns=["label", "prediction"])
    right = 100 * float((table["label"].to_numpy() == table["prediction"].to_numpy()).mean())
    yield Measured(what=what, value=right, unit="%", at_least=bench.target(94.0))


def prediction(bench: Bench) -> Iterator[Measured]:
    """Rows in a second: the job with its files, and the model alone with rows and results on the host."""
    for name in (_VIT, _RESNET):
        model, _ = bench.train(bench.recipe(name, epochs=1))
        _, rate = bench.predict(model, split="train")
        note = "with loading the model, reading and writing"
        yield Measured(what=f"{name}: prediction, job", value=rate, unit="rows/s", note=note)
        pixels, _ = images.to_arrays(tables.read_split(bench.prepared, "train"), _SOURCE.image_shape)
        inference = Inference(model, threads=os.cpu_count() or 1, device=bench.device)
        inference.probabilities(pixels)
        begun = time.perf_counter()
        inference.probabilities(pixels)
        rate = len(pixels) / (time.perf_counter() - begun)
        yield Measured(what=f"{name}: prediction, model alone", value=rate, unit="rows/s", note=inference.precision)


LINES: dict[str, Callable[[Bench], Iterator[Measured]]] = {
    "vit": functools.partial(epochs, name=_VIT),
    "resnet18": functools.partial(epochs, name=_RESNET),
    "airbench": airbench,
    "prediction": prediction,
}


def cannot_compile() -> str:
    """Return what `torch.compile` lacks here; empty if it lacks nothing: Triton builds its driver from C with it."""
    compilers = [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]
    if not any(map(shutil.which, compilers)):
        return f"torch.compile needs a C compiler, and there is no {' or '.join(compilers)}"
    header = Path(sysconfig.get_path("include"), "Python.h")
    return "" if header.is_file() else f"torch.compile needs Python's headers, and there is no {header}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print all lines; return 0 if no target is missed and no line failed."""
    options = parser().parse_args(arguments)
    settings = dict(setting.partition("=")[::2] for setting in options.set)
    try:
        recipes.override(recipes.load(_VIT), settings)
    except ValueError as error:
        raise SystemExit(f"error: --set: {error}") from None
    if settings.get("device", "cuda") == "cuda" and (trouble := devices.trouble()):
        print(f"skipped: no GPU to measure: {trouble}")
        return 0
    lines, failures = list[Measured](), 0
    with tempfile.TemporaryDirectory(prefix="gpu-bench-", dir=options.folder) as folder:
        bench = Bench(Path(folder), data=options.data, rows=options.rows, epochs=options.epochs, settings=settings)
        about = _about(bench)
        print(*(f"{name}: {value}" for name, value in about.items()), sep="\n", flush=True)
        for name in options.only or LINES:
            try:
                for line in LINES[name](bench):
                    lines.append(line)
                    print(line, flush=True)
            except Exception as error:  # the other lines are worth having
                failures += 1
                print(f"{name}: failed: {type(error).__name__}: {error}", flush=True)
            if options.json:
                content = {"about": about, "lines": [dataclasses.asdict(line) for line in lines]}
                options.json.write_text(json.dumps(content, indent=1) + "\n")
    return 1 if failures or any(line.is_missed for line in lines) else 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = options.add_argument
    add("--data", metavar="DIR", type=Path, help="folder with cifar-10-binary.tar.gz (default: random images)")
    add("--json", metavar="FILE", type=Path, help="also write the lines to FILE")
    add("--only", choices=LINES, action="append", default=[], help="only this line; repeatable")
    add("--rows", metavar="N", type=int, default=_ROWS, help=f"random training images (default: {_ROWS})")
    add("--epochs", metavar="N", type=int, default=5, help="timed epochs; their median counts (default: 5)")
    tries = "change a field of every recipe; device=cpu tries the benchmark without a GPU"
    add("--set", metavar="FIELD=VALUE", action="append", default=[], help=tries)
    add("--folder", metavar="DIR", help="folder for temporary files (default: the system's)")
    return options


def _about(bench: Bench) -> dict[str, Any]:
    """What has to be known to read the figures."""
    is_gpu = bench.device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name(bench.device) if is_gpu else platform.processor() or platform.machine(),
        "CPUs": os.cpu_count(),
        "images": f"CIFAR-10 from {bench.data}" if bench.data else f"{bench.rows} random ones",
        "settings": bench.settings,
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}",
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }


if __name__ == "__main__":
    sys.exit(main())
