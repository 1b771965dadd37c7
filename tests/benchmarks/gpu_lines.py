"""What `python -m tests.benchmarks.gpu` measures: epochs, the GPU's busy time, checkpoints, prediction, airbench94."""

import dataclasses
import functools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from storage import manifest, tables
from storage.uri import URI, CheckpointURI, PredictionsURI
from tasks.jobs import events
from tasks.jobs.train import single_process, train_loop
from tasks.learning import checkpoint, images, training_state
from tasks.learning.inference import Inference
from tasks.learning.loop import Trainer
from tasks.learning.recipes import Recipe
from tasks.resources.scaling import Needs
from tasks.runners.runner import InProcessRunner
from tests.benchmarks.gpu_bench import TRAIN_ROWS, Bench, cannot_compile
from tests.benchmarks.ratios import Target, at_least, at_most
from tests.runs import CHECKOUT

_WARM_UP = 2
"""Epochs before those that are timed: the first one chooses algorithms, captures and compiles."""
_VIT, _RESNET = "cifar10-vit", "cifar10-resnet18"
_AIRBENCH = f"{CHECKOUT}/examples/cifar10_airbench.py:cifar10_airbench"
VARIANTS: dict[str, dict[str, str]] = {
    "eager": {"step": "eager"},
    "graph": {"step": "auto"},
    "compile": {"step": "eager", "compile": "true"},
    "graph and compile": {"step": "auto", "compile": "true"},
}
"""Ways to launch a step; a graph wherever there can be one."""
NEEDS_DATA = "needs --data: accuracy on random images means nothing"
_ON_DEVICE = {"cuda": {"kernel", "gpu_memcpy", "gpu_memset"}, "cpu": {"cpu_op"}}
"""Categories of a profiler's trace in which the device itself works."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Measured:
    """One line of what was measured; of plain values, so that a process can hand it to another as JSON."""

    what: str
    value: float | None = None
    """None: not measured; `note` says why."""
    unit: str = ""
    target: str = ""
    verdict: str = ""
    """met, missed, failed, or empty where there is no target."""
    note: str = ""

    def __str__(self) -> str:
        value = "not measured" if self.value is None else f"{self.value:,.4g} {self.unit}".strip()
        return f"{self.what}: {value} {self.target and f'({self.target})'} {self.verdict} {self.note}".rstrip()


def judged(bench: Bench, target: Target, **line: Any) -> Measured:
    """A line with a target, which is set for a GPU, all rows and the recipes as they are."""
    if bench.device.type != "cuda" or bench.rows != TRAIN_ROWS or bench.settings:
        return Measured(**line)
    value = line.get("value")
    verdict = "" if value is None else "met" if target.allows(value) else "missed"
    return Measured(**line, target=str(target), verdict=verdict)


def jobs(bench: Bench) -> Iterator[Measured]:
    """Epochs of whole training jobs as the recipes are, with evaluation and checkpoints."""
    for name in (_VIT, _RESNET):
        recipe = bench.recipe(name, epochs=_WARM_UP + bench.epochs)
        history = _history(_train(bench, recipe))[_WARM_UP:]
        waited = sum(row["data_wait_s"] + row["checkpoint_wait_s"] for row in history) / len(history)
        seconds = statistics.median(row["seconds"] for row in history)
        note = f"{_rate(bench, seconds)}; waits {waited:.2f} s"
        line: dict[str, Any] = {
            "what": f"{name}: job, one epoch with evaluation",
            "value": seconds,
            "unit": "s",
            "note": note,
        }
        yield judged(bench, at_most(2.0), **line) if name == _VIT else Measured(**line)


def epochs(bench: Bench, *, name: str, **changes: str) -> Iterator[Measured]:
    """Epochs with evaluation of one recipe, launched in every way."""
    for variant, how in VARIANTS.items():
        recipe = bench.recipe(name, epochs=_WARM_UP + bench.epochs, **changes, **how)
        what = f"{name}, {recipe.model}: {variant}"
        if recipe.training.compile and (lacking := cannot_compile()):
            yield Measured(what=what, note=lacking)
            continue
        trainer = bench.trainer(recipe)
        first, *_ = _seconds(trainer, range(1, _WARM_UP + 1))
        seconds = statistics.median(_seconds(trainer, range(_WARM_UP + 1, recipe.training.epochs + 1)))
        note = f"{_rate(bench, seconds)}; {trainer.precision}; first epoch {first:.1f} s"
        yield Measured(what=what, value=seconds, unit="s", note=note)
        del trainer


def busy(bench: Bench, *, name: str) -> Iterator[Measured]:
    """The share of an epoch with evaluation in which the device works, as the recipe is.

    The profiler's epoch gives the time of the device's own work, others the length of an epoch: the profiler makes the
    host slower, and with it the epoch, but not the work.
    """
    recipe = bench.recipe(name, epochs=_WARM_UP + bench.epochs + 1)
    busy_seconds(lambda: None, bench.device)  # kernels of a graph from before the profiler's first use may be missing
    trainer = bench.trainer(recipe)
    _seconds(trainer, range(1, _WARM_UP + 1))
    seconds = statistics.median(_seconds(trainer, range(_WARM_UP + 1, recipe.training.epochs)))
    worked = busy_seconds(lambda: trainer.run_epoch(recipe.training.epochs), bench.device)
    what = f"{name}: share of an epoch in which the device is busy"
    if worked is None:
        yield Measured(what=what, note="no kernels were recorded")
        return
    note = f"{worked:.3f} s of {seconds:.3f} s"
    yield judged(bench, at_least(90), what=what, value=100 * worked / seconds, unit="%", note=note)


def busy_seconds(work: Callable[[], object], device: torch.device) -> float | None:
    """Return how long `device` computed or copied during `work`; None if the profiler saw nothing of it."""
    is_gpu = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if is_gpu else ProfilerActivity.CPU]) as seen:
        work()
        if is_gpu:
            torch.cuda.synchronize(device)
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder, "trace.json")
        seen.export_chrome_trace(str(trace))
        trace_events = json.loads(trace.read_text())["traceEvents"]
    return union_s(
        [event for event in trace_events if event.get("ph") == "X" and event.get("cat") in _ON_DEVICE[device.type]]
    )


def union_s(trace_events: Sequence[Mapping[str, Any]]) -> float | None:
    """Return the seconds that at least one of the events of a trace (in microseconds) covers; None without any."""
    covered, until = 0.0, float("-inf")
    for start, length in sorted((float(event["ts"]), float(event["dur"])) for event in trace_events):
        covered += max(0.0, start + length - max(start, until))
        until = max(until, start + length)
    return covered / 1e6 if trace_events else None


def airbench(bench: Bench) -> Iterator[Measured]:
    """The training that is to reach 94 % within seconds, as a job from its first epoch on."""
    recipe = bench.recipe(_AIRBENCH)
    uri = _train(bench, recipe)
    history = _history(uri)
    seconds, whole = (sum(row[name] for row in history) for name in ("train_s", "seconds"))
    note = f"{recipe.training.epochs} epochs; {whole:.1f} s with evaluation and checkpoints"
    yield judged(bench, at_most(10.0), what="cifar10-airbench: training", value=seconds, unit="s", note=note)
    what = "cifar10-airbench: test accuracy"
    if bench.data is None:
        yield Measured(what=what, note=NEEDS_DATA)
        return
    predictions, _ = _predict(bench, uri, split="test")
    table = tables.read_split(predictions, columns=["label", "prediction"])
    right = 100 * float((table["label"].to_numpy() == table["prediction"].to_numpy()).mean())
    yield judged(bench, at_least(94.0), what=what, value=right, unit="%", note="best epoch by validation loss")


def checkpoints(bench: Bench) -> Iterator[Measured]:
    """What a checkpoint after every epoch costs: the training thread's time, and the length of an epoch."""
    recipe = bench.recipe(_VIT, epochs=_WARM_UP + 2 * bench.epochs)
    trainer, attempt = bench.trainer(recipe), bench.store.fresh(URI, "runs").child("attempt-1")
    about: dict[str, Any] = {"parameters": {}, "resolved": {}}
    history = [trainer.run_epoch(epoch) for epoch in range(1, _WARM_UP + 1)]
    plain = statistics.median(_seconds(trainer, range(_WARM_UP + 1, _WARM_UP + bench.epochs + 1)))
    begun, seconds = time.perf_counter(), list[float]()
    with ThreadPoolExecutor(1) as executor, events.redirect_lines(lambda line: None):
        report = functools.partial(single_process.keep_newest_and_best, every=1)
        writer = train_loop.Checkpoints(attempt, report, executor)
        for epoch in range(_WARM_UP + bench.epochs + 1, recipe.training.epochs + 1):
            history.append(trainer.run_epoch(epoch))
            writer.take(history, trainer, prepared="", fields=about)
            seconds.append(time.perf_counter() - begun)
            begun = time.perf_counter()
        writer.finish()
    begun = time.perf_counter()
    snapshot = training_state.take(trainer, history, prepared="", fields=about)
    blocked = time.perf_counter() - begun
    checkpoint.write(attempt.child("epoch-9999"), snapshot)
    complete = time.perf_counter() - begun
    size = training_state.size_of(trainer) / 2**20
    yield Measured(what=f"{_VIT}: checkpoint, training is blocked", value=1e3 * blocked, unit="ms")
    written = f"{_VIT}: checkpoint, until it is written"
    yield Measured(what=written, value=complete, unit="s", note=f"about {size:.0f} MiB")
    with_it = statistics.median(seconds)
    note = f"{with_it:.3f} s and {plain:.3f} s"
    yield Measured(what=f"{_VIT}: epoch with a checkpoint / without", value=with_it / plain, unit="", note=note)


def prediction(bench: Bench) -> Iterator[Measured]:
    """Rows in a second: the model alone, with rows and results on the host, and the job with its files."""
    for name in (_VIT, _RESNET):
        model = _train(bench, bench.recipe(name, epochs=1))
        predictions, seconds = _predict(bench, model, split="train")
        rows = manifest.load(predictions).rows
        note = f"{rows:,} rows, with loading the model, reading and writing"
        yield Measured(what=f"{name}: prediction, job", value=rows / seconds, unit="rows/s", note=note)
        pixels, _ = images.to_arrays(tables.read_split(bench.prepared, "train"), bench.image_shape)
        inference = Inference(model, threads=os.cpu_count() or 1, device=bench.device)
        inference.probabilities(pixels)
        begun = time.perf_counter()
        inference.probabilities(pixels)
        rate = len(pixels) / (time.perf_counter() - begun)
        yield Measured(what=f"{name}: prediction, model alone", value=rate, unit="rows/s", note=inference.precision)


LINES: dict[str, Callable[[Bench], Iterator[Measured]]] = {
    "jobs": jobs,
    "vit": functools.partial(epochs, name=_VIT),
    "vit-sdpa": functools.partial(epochs, name=_VIT, model="vit-patch4-sdpa"),
    "resnet18": functools.partial(epochs, name=_RESNET),
    "busy-vit": functools.partial(busy, name=_VIT),
    "busy-resnet18": functools.partial(busy, name=_RESNET),
    "airbench": airbench,
    "checkpoints": checkpoints,
    "prediction": prediction,
}


def _seconds(trainer: Trainer, epochs: range) -> list[float]:
    """Seconds of each epoch; it ends with reading the validation loss, for which the host waits."""
    seconds = []
    for epoch in epochs:
        begun = time.perf_counter()
        trainer.run_epoch(epoch)
        seconds.append(time.perf_counter() - begun)
    return seconds


def _rate(bench: Bench, seconds: float) -> str:
    return f"{bench.num_train_rows / seconds:,.0f} training images/s"


def _train(bench: Bench, recipe: Recipe) -> CheckpointURI:
    return bench.store.train(InProcessRunner(), bench.prepared, recipe)


def _history(uri: CheckpointURI) -> list[dict[str, float]]:
    history: list[dict[str, float]] = manifest.load(uri).statistics["history"]
    return history


def _predict(bench: Bench, model: CheckpointURI, *, split: str) -> tuple[PredictionsURI, float]:
    """Return the predictions and the seconds that they took."""
    needs = Needs(device="cuda" if bench.device.type == "cuda" else "cpu")
    begun = time.perf_counter()
    uri = bench.store.predict(InProcessRunner(), model, bench.prepared, split=split, workers=0, needs=needs)
    return uri, time.perf_counter() - begun
