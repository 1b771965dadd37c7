"""Terminal output during a run and at its end."""

import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

from storage import terminal
from storage.manifest import JSON
from storage.statistics import Slice
from tasks.jobs.events import EPOCHS
from tasks.learning import slices
from tasks.learning.sources import mnist_sample
from tasks.report_page import accuracy_interval

_OURS = tuple(f"{Path(__file__).resolve().parents[2] / room}{os.sep}" for room in ("flows", "tasks", "storage"))
_CLASSES_SHOWN, _NAMES_SHOWN = 20, 3


class Narrator(logging.Handler):
    """Log handler that shows a line per stage and the progress: a bar on a terminal, else the lines of level INFO."""

    def __init__(self, console: Console, *, has_bar: bool = True) -> None:
        super().__init__()
        self.console, self.has_bar = console, has_bar and console.is_terminal
        self.started = time.monotonic()
        self._bar: Progress | None = None

    def emit(self, record: logging.LogRecord) -> None:
        progress = getattr(record, "progress", None)
        if not record.pathname.startswith(_OURS):
            if "Retry" in record.getMessage():
                self._line(record.getMessage().splitlines()[0])
        elif progress:
            self._progress(progress, record)
        elif record.levelno >= (logging.WARNING if hasattr(record, "job") else logging.INFO):
            event = getattr(record, "event", None)
            if event:
                self.stop()
            self._line(("" if event else "  ") + record.getMessage())

    def stop(self) -> None:
        """Remove the progress bar, if there is one."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _progress(self, progress: JSON, record: logging.LogRecord) -> None:
        is_epoch, done, total = progress["what"] == EPOCHS, progress["done"], progress["total"]
        message = record.getMessage()
        if is_epoch or (not self.has_bar and record.levelno >= logging.INFO):
            self._line(f"  {message}")
        if not self.has_bar:
            return
        description = escape(terminal.printable(f"epoch {done}/{total} done" if is_epoch else message))
        if self._bar is None:
            columns = (TextColumn("  {task.description}"), BarColumn(bar_width=None), TaskProgressColumn())
            self._bar = Progress(*columns, console=self.console, transient=True, expand=True)
            self._bar.add_task(description, total=1.0, completed=progress["fraction"])
            self._bar.start()
        (task,) = self._bar.task_ids
        self._bar.update(task, description=description, completed=progress["fraction"], refresh=True)

    def _line(self, message: str) -> None:
        """Print a line without interpreting markup in it; the terminal wraps it, so that a URI can be copied whole."""
        line = f"[{time.monotonic() - self.started:5.1f} s] {terminal.printable(message)}"
        line = terminal.short(line) if self.console.is_terminal else line
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)


def attach(narrator: Narrator) -> None:
    """Make `narrator` the only console output of runs; Prefect still sends its logs to the API."""
    logging.getLogger().handlers.clear()
    logging.getLogger("prefect").handlers.clear()
    for name in ("prefect.flow_runs", "prefect.task_runs", "pipeline"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.DEBUG)
        logger.handlers = [handler for handler in logger.handlers if not isinstance(handler, Narrator)] + [narrator]
        logger.propagate = False


def lines(summary: JSON) -> Iterator[str]:
    """Yield the final table (stages, seconds, reused or not, URIs) and then the verdict."""
    rows = [("stage", "seconds", "", "result")]
    for stage in summary["stages"]:
        reused = "reused" if stage["reused"] else ""
        rows.append((stage["name"], f"{stage['seconds']:.1f}", reused, stage["uri"] or summary["reason"]))
    yield from ["", *terminal.table(rows, right=(1,)), "", *_verdict(summary)]


def _verdict(summary: JSON) -> Iterator[str]:
    if "suspects" in summary:
        yield from _audit(summary)
        return
    if "metrics" not in summary:
        yield from _prediction(summary)
        return
    if summary["source"]["notice"]:
        yield f"note           this is {summary['source']['notice']}"
    for problem in summary["data_problems"]:
        yield f"note           {problem}"
    metrics = summary["metrics"]
    interval = f"95% interval {accuracy_interval(metrics)}"
    yield f"test accuracy  {metrics['test_accuracy']:.4f} on {metrics['num_rows']:,} rows ({interval})"
    yield f"balanced acc.  {metrics['balanced_accuracy']:.4f}"
    yield f"macro F1       {metrics['macro_f1']:.4f}"
    yield f"test loss      {metrics['test_loss']:.4f}"
    for entry in metrics.get("worse_slices", ()):
        yield f"worse slice    {slices.describe(Slice(**entry))}"
    yield f"decision       {summary['verdict']}: {summary['reason']}"
    yield f"champion       {summary['champion'] or 'none'} (champion:{summary['registered_model']})"
    yield f"report         {summary['uris']['report']}/index.html"
    if summary["source"]["data"] == mnist_sample.SOURCE.name:
        yield "next           all of MNIST: data-to-model run --recipe mnist-resnet18"


def _audit(summary: JSON) -> Iterator[str]:
    suspects = summary["suspects"]
    yield f"audited        {terminal.count(summary['rows'], 'image')}"
    yield f"suspects       {len(suspects):,}, {sum(row['sure'] for row in suspects):,} of them sure"
    if suspects:
        rows = [(row["file"], row["given"], row["likely"], f"{row['probability']:.3f}") for row in suspects]
        yield from terminal.table([("file", "label", "likely", "probability"), *rows[:_CLASSES_SHOWN]], right=(3,))
    yield f"page           {summary['uris']['audit']}/index.html"


def _prediction(summary: JSON) -> Iterator[str]:
    unpredicted, below, above = (
        summary[name] for name in ("unpredicted", "below_min_confidence", "above_max_distance")
    )
    by_count = sorted(summary["predicted"].items(), key=lambda item: -item[1])
    yield f"model          {summary['uris']['checkpoint']}"
    with_class = summary["rows"] - unpredicted["rows"] - below - above
    yield f"predicted      {terminal.count(with_class, 'row')} of {summary['rows']:,}"
    for name, rows in by_count[:_CLASSES_SHOWN]:
        yield f"  {rows:>11,}  {name}"
    if len(by_count) > _CLASSES_SHOWN:
        rest = by_count[_CLASSES_SHOWN:]
        yield f"  {sum(rows for _, rows in rest):>11,}  in {len(rest):,} other classes"
    if below:
        yield f"no class       {terminal.count(below, 'row')} below --min-confidence"
    if above:
        yield f"no class       {terminal.count(above, 'row')} above --max-distance"
    if unpredicted["rows"]:
        named = ", ".join([*unpredicted["named"][:_NAMES_SHOWN], *["..."] * (unpredicted["rows"] > _NAMES_SHOWN)])
        yield f"unreadable     {terminal.count(unpredicted['rows'], 'row')} without a prediction: {named or 'no image'}"
    if summary["drift"]:
        yield f"drift          {summary['drift']['summary']}"
    if "csv" in summary:
        yield f"table          {summary['csv']}"
