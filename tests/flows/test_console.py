"""Terminal output of a run: what it shows, and what it omits."""

import io
import logging
import os
import re
from typing import Any

import pytest
from rich.console import Console

from flows.cli.console import Narrator, lines
from storage import terminal
from tasks.jobs.events import EPOCHS
from tests.runs import CHECKOUT

_PREDICTED: dict[str, Any] = {
    "predicted": {"cat": 3},
    "unpredicted": {"rows": 0, "named": []},
    "below_min_confidence": 0,
    "above_max_distance": 0,
    "drift": None,
}


def test_only_our_own_lines_are_shown_wherever_prefect_is_installed() -> None:
    console = Console(file=io.StringIO(), width=100)
    for place in ("tasks/orchestration/stage.py", ".venv/lib/prefect/flow_engine.py", "../elsewhere/prefect/flow.py"):
        Narrator(console).emit(
            logging.LogRecord("prefect.task_runs", logging.INFO, str(CHECKOUT / place), 1, place, (), None)
        )
    assert [line[10:].strip() for line in _lines(console)] == ["tasks/orchestration/stage.py"]


def test_a_path_is_shown_as_it_is_without_markup_and_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    uri = f"{os.sep}my [/data]{os.sep}[x]"
    stages = [{"name": "predict", "seconds": 1.0, "reused": True, "uri": uri}]
    terminal.show_lines(lines({"stages": stages, "rows": 3, "uris": {"checkpoint": uri}, **_PREDICTED}))
    output = capsys.readouterr().out
    assert output.count(uri) == 2 and f"predict      1.0  reused  {uri}" in output.splitlines()
    console = Console(file=io.StringIO(), width=100)
    for text in (uri, "cat/\x1b]52;c;ZXZpbA==\x07.png"):
        place = str(CHECKOUT / "tasks/predict.py")
        Narrator(console).emit(logging.LogRecord("prefect.task_runs", logging.INFO, place, 1, text, (), None))
    assert uri in _text(console)
    assert "\\x1b]52;c;ZXZpbA==\\x07.png" in _text(console) and "\x1b]52" not in _text(console)


def test_every_epoch_is_a_line_above_the_bar() -> None:
    terminal = Console(file=io.StringIO(), width=80, force_terminal=True)
    file = Console(file=io.StringIO(), width=80)
    for console in (terminal, file):
        narrator = Narrator(console)
        for epoch in (1, 2):
            steps = f"epoch {epoch}/12, steps 8/80 loss 0.345"
            narrator.emit(_progress("steps", 8, steps, level=logging.DEBUG, fraction=(epoch - 0.5) / 12))
            narrator.emit(_progress(EPOCHS, epoch, f"epoch {epoch}/12: in words", fraction=epoch / 12))
        narrator.stop()
        epochs = [line[10:].strip() for line in _lines(console) if line.startswith("[")]
        assert epochs == [f"epoch {epoch}/12: in words" for epoch in (1, 2)]
    bars = [line for line in _lines(terminal) if "%" in line]
    assert re.search(r"  epoch 1/12, steps 8/80 loss 0\.345 .*  4%", bars[0]), bars
    assert "17%" in bars[-1] and all(len(line) <= 80 for line in bars)


def _progress(what: str, done: int, message: str, *, level: int = logging.INFO, **content: Any) -> logging.LogRecord:
    place = str(CHECKOUT / "tasks/runners/job_log.py")
    record = logging.LogRecord("prefect.task_runs", level, place, 1, message, (), None)
    record.progress = {"what": what, "done": done, "total": 12, "note": ""} | content
    return record


def _lines(console: Console) -> list[str]:
    """What was written, without escape sequences; what was written over is a line too."""
    return [
        line for line in re.split(r"[\r\n]+", re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", _text(console))) if line.strip()
    ]


def _text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
