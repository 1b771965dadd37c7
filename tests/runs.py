"""Whole runs of the command line as a person starts them: a process of its own, watched from outside."""

import atexit
import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import typer
from filelock import FileLock

from flows.cli.app import taking
from flows.cli.options import FlowOptions

CHECKOUT = Path(__file__).resolve().parent.parent
SHARED = "PIPELINE_TEST_SHARED"
"""Environment variable with a folder that all pytest workers share."""
_MARK = "PIPELINE_TEST_RUN"
LIMIT_S = 900
_Value = TypeVar("_Value")
_Options = TypeVar("_Options", bound=FlowOptions)


class Run:
    """One `python flows/<script>.py` in another working directory; every process that it starts carries a mark."""

    def __init__(
        self,
        *arguments: str,
        folder: Path,
        script: str = "pipeline.py",
        env: Mapping[str, str] | None = None,
        checkout: Path = CHECKOUT,
        python: str | Path = sys.executable,
    ):
        folder.mkdir(parents=True, exist_ok=True)
        home = folder / "prefect"
        prefect_home(home)
        self.mark = uuid.uuid4().hex
        self.output, self.log = folder / f"{self.mark}.out", folder / f"{self.mark}.log"
        self.process = subprocess.Popen(
            [str(python), str(checkout / "flows" / script), *arguments],
            cwd=folder,
            env={**os.environ, "PREFECT_HOME": str(home), _MARK: self.mark, **(env or {})},
            stdout=self.output.open("wb"),
            stderr=self.log.open("wb"),
        )

    def wait(self) -> int:
        """Its exit code; the log is shown when it was not 0."""
        code = self.process.wait(LIMIT_S)
        if code:
            print(self.log.read_text())
        return code

    def result(self) -> dict[str, Any]:
        """The document that `--json` printed, once the run succeeded."""
        assert self.wait() == 0
        document: dict[str, Any] = json.loads(self.output.read_text())
        return document

    def says(self, text: str) -> bool:
        """Whether `text` stands in its log."""
        return text in self.log.read_text()

    def processes(self) -> dict[int, str]:
        """Every live process that carries the mark of this run, with its command line."""
        return processes_with(f"{_MARK}={self.mark}")


def prefect_home(home: Path) -> None:
    """Make `home` a home for Prefect whose database is there, unless it is one; making the database takes seconds."""
    if not home.exists():
        shutil.copytree(_home_with_database(), home)


@functools.cache
def _home_with_database() -> Path:
    folder = os.environ.get(SHARED)
    if folder is None:
        folder = tempfile.mkdtemp(prefix="shared-")
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
    home, making = Path(folder, "prefect"), Path(folder, "making")
    with FileLock(Path(folder, "lock")):
        if not home.exists():
            command = [sys.executable, "-m", "prefect", "server", "database", "upgrade", "-y"]
            subprocess.run(command, env=os.environ | {"PREFECT_HOME": str(making)}, check=True, capture_output=True)
            making.rename(home)
    return home


def processes_with(variable: str) -> dict[int, str]:
    """Every live process whose environment holds `variable`, `NAME=value`, with its command line."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if variable.encode() in (entry / "environ").read_bytes().split(b"\0"):
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


def find(folder: Path, pattern: str) -> list[Path]:
    """The paths below `folder` that match `pattern`; none if a folder there is deleted during the search."""
    with contextlib.suppress(FileNotFoundError):  # `glob` of Python 3.11 raises it
        return list(folder.glob(pattern))
    return []


def kill_process(pid: int) -> None:
    """SIGKILL a process that may have ended by itself meanwhile."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_all_with(variable: str) -> None:
    """SIGKILL every process whose environment holds `variable`, until none is left; some end or start meanwhile."""

    def none_is_left() -> bool:
        left = processes_with(variable)
        for pid in left:
            kill_process(pid)
        return not left

    await_that(none_is_left, limit_s=60)


def await_that(condition: Callable[[], _Value], *, limit_s: float = LIMIT_S, interval_s: float = 0.1) -> _Value:
    """Wait until `condition` holds, at most `limit_s`; return its value."""
    deadline = time.monotonic() + limit_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"it did not come to hold within {limit_s} s"
        time.sleep(interval_s)
    return value


@contextlib.contextmanager
def repeatedly(look: Callable[[], None], *, interval_s: float) -> Iterator[None]:
    """`look` again and again in another thread, for as long as the context lasts."""
    ended = threading.Event()

    def until_ended() -> None:
        while not ended.wait(interval_s):
            look()

    thread = threading.Thread(target=until_ended)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def options_of(options: type[_Options], *words: str) -> _Options:
    """What a command gets for the words of a command line."""
    app = typer.Typer()
    app.command()(taking(options, lambda values: values))
    with typer.main.get_command(app).make_context("test", list(words)) as context:
        values = context.command.invoke(context)
    assert isinstance(values, options)
    return values


def copy_of_checkout(folder: Path) -> Path:
    """Copy the checkout's files, changed ones as they are, to `folder`."""
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=CHECKOUT, capture_output=True)
    for name in listed.stdout.decode().splitlines():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CHECKOUT / name, folder / name)
    return folder
