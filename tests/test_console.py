"""What a person sees of a run, and does not see."""

import io
import logging
import os

import pytest
from rich.console import Console

from flows.console import Narrator, show
from tests.runs import CHECKOUT


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("tasks/stage.py", True),
        ("flows/pipeline.py", True),
        (".venv/lib/python3.11/site-packages/prefect/flow_engine.py", False),
        ("../elsewhere/prefect/flow_engine.py", False),
    ],
)
def test_only_our_own_lines_are_shown_wherever_prefect_is_installed(path: str, shown: bool) -> None:
    console = Console(file=io.StringIO(), width=100)
    record = logging.LogRecord("prefect.task_runs", logging.INFO, str(CHECKOUT / path), 1, "said", (), None)
    Narrator(console).emit(record)
    assert ("said" in _text(console)) is shown


def test_a_path_that_looks_like_markup_is_shown_as_it_is() -> None:
    uri = f"{os.sep}my [/data]{os.sep}[x]"
    stages = [{"name": "predict", "seconds": 1.0, "reused": False, "uri": uri}]
    console = Console(file=io.StringIO(), width=100)
    show({"stages": stages, "rows": 3, "uris": {"checkpoint": uri}}, console)
    assert _text(console).count(uri) == 2


def _text(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()
