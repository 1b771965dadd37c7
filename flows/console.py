"""What a person sees while a run goes on and when it ends."""

import logging
import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from tasks.jobs.spec import EPOCHS

_CHECKOUT = Path(__file__).resolve().parent.parent
_OURS = tuple(f"{_CHECKOUT / package}{os.sep}" for package in ("flows", "tasks", "storage"))
_EVERY_S = 5.0
"""How often progress is told where there is no terminal."""


class Narrator(logging.Handler):
    """Shows a run's log records: a line per stage, a bar on a terminal, else a line now and then; no chatter."""

    def __init__(self, console: Console, *, has_bar: bool = True) -> None:
        super().__init__()
        self.console, self.has_bar = console, has_bar and console.is_terminal
        self.started = self._told = time.monotonic()
        self._bar: Progress | None = None
        self._task: Any = None

    def emit(self, record: logging.LogRecord) -> None:
        progress = getattr(record, "progress", None)
        if not record.pathname.startswith(_OURS):
            if "Retry" in record.getMessage():
                self._line(record.getMessage().splitlines()[0])
        elif progress:
            self._progress(progress)
        elif record.levelno >= (logging.WARNING if hasattr(record, "job") else logging.INFO):
            event = getattr(record, "event", None)
            if event:
                self.stop()
            self._line(("" if event else "  ") + record.getMessage())

    def stop(self) -> None:
        """Take the bar away, if there is one."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _progress(self, progress: dict[str, Any]) -> None:
        what, done, total, note = (progress[name] for name in ("what", "done", "total", "note"))
        if self.has_bar:
            if self._bar is None:
                columns = (TextColumn("          {task.description}"), BarColumn(), MofNCompleteColumn())
                self._bar = Progress(*columns, TimeElapsedColumn(), console=self.console, transient=True)
                self._task = self._bar.add_task(what, total=total)
                self._bar.start()
            self._bar.update(self._task, description=escape(f"{what} {note}"), completed=done, total=total)
        elif what == EPOCHS or time.monotonic() - self._told > _EVERY_S:
            self._told = time.monotonic()
            self._line(f"  {what} {done:,}/{total:,} {note}".rstrip())

    def _line(self, text: str) -> None:
        elapsed = time.monotonic() - self.started
        self.console.print(f"[{elapsed:5.1f} s] {text}", markup=False, highlight=False, soft_wrap=True)


def attach(narrator: Narrator) -> None:
    """Let `narrator` alone speak of runs: Prefect's own console output is taken away, its API log stays."""
    logging.getLogger().handlers.clear()
    logging.getLogger("prefect").handlers.clear()
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.DEBUG)
        logger.handlers = [one for one in logger.handlers if not isinstance(one, Narrator)] + [narrator]
        logger.propagate = False


def show(summary: dict[str, Any], console: Console) -> None:
    """The table at the end: stages, seconds, what was reused, every URI; then the verdict."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("stage", no_wrap=True)
    table.add_column("seconds", justify="right", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("result", overflow="fold")
    for stage in summary["stages"]:
        reused = "reused" if stage["reused"] else ""
        result = stage["uri"] or summary["reason"]
        table.add_row(stage["name"], f"{stage['seconds']:.1f}", reused, Text(result))  # a path may look like markup
    console.print()
    console.print(table)
    if "metrics" in summary:
        _show_verdict(summary, console)
    else:
        text = f"\n{summary['rows']:,} rows predicted with {summary['uris']['checkpoint']}"
        console.print(text, markup=False, highlight=False, soft_wrap=True)


def _show_verdict(summary: dict[str, Any], console: Console) -> None:
    metrics = summary["metrics"]
    verdict = "promoted" if summary["promoted"] else "not promoted"
    lines = [
        f"test accuracy  {metrics['test_accuracy']:.4f} over {metrics['num_rows']:,} rows",
        f"test loss      {metrics['test_loss']:.4f}",
        f"decision       {verdict}: {summary['reason']}",
        f"champion       {summary['champion'] or 'none'}",
        f"report         {summary['uris']['report']}/index.html",
    ]
    if summary["source"]["notice"]:
        lines.insert(0, f"note           this is {summary['source']['notice']}")
    console.print()
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
