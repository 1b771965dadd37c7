"""Exit codes of the commands, and the line on stderr that explains a failure."""

import contextlib
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from storage import error_policy, terminal
from storage.process import reach_loopback_directly

INTERRUPTED, HUNG_UP = 130, 129
"""Exit codes after Ctrl-C, and after the terminal was closed."""


class HungUp(KeyboardInterrupt):
    """The terminal was closed (SIGHUP); cleans up as Ctrl-C does."""


def guarded(work: Callable[[], int]) -> int:
    """Run `work` and return its exit code; report a failure or an interruption on stderr, but not a closed pipe."""
    reach_loopback_directly()
    try:
        with _ending_at_hangup():
            return work()
    except HungUp:
        note("The terminal was closed. Run the same command again to resume.")
        return HUNG_UP
    except KeyboardInterrupt:
        note("Interrupted. Run the same command again to resume.")
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            return 1
        if os.environ.get("PIPELINE_TRACEBACK"):
            raise
        lines = str(error).strip().splitlines() or [""]
        ours = type(error).__module__.partition(".")[0] in ("flows", "storage", "tasks", "__main__")
        is_told = ours or type(error) is ValueError
        note(f"error: {lines[0]}" if is_told else f"error: {type(error).__name__}: {lines[0]}")
        for line in lines[1:]:
            note(line)
        if not error_policy.is_permanent(error):
            note("Run the same command again to resume; PIPELINE_TRACEBACK=1 shows the traceback.")
        elif not is_told:
            note("PIPELINE_TRACEBACK=1 shows the traceback.")
        return 1


@contextlib.contextmanager
def _ending_at_hangup() -> Iterator[None]:
    """Raise `HungUp` in the block at SIGHUP, unless it is ignored, as `nohup` makes it, or handled already."""
    is_default = signal.getsignal(signal.SIGHUP) is signal.SIG_DFL
    if not is_default or threading.current_thread() is not threading.main_thread():
        yield
        return

    def hang_up(*_: object) -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # shell and kernel each send one
        for output in (1, 2):
            if stat.S_ISCHR(os.fstat(output).st_mode):  # writing to a terminal that is gone fails
                os.dup2(os.open(os.devnull, os.O_WRONLY), output)
        raise HungUp

    signal.signal(signal.SIGHUP, hang_up)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


def note_checking() -> None:
    """Say at once on a terminal that the request is checked; elsewhere an invalid one is one line and no more."""
    if sys.stderr.isatty():
        note("checking the request ...")


def _is_output_closed() -> bool:
    """Return whether the reader of standard output closed the pipe, as `head` does; discard the output then."""
    output, state = sys.stdout.fileno(), select.poll()
    state.register(output, 0)
    is_closed = any(event & select.POLLERR for _, event in state.poll(0))
    if is_closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return is_closed


def note(text: str) -> None:
    """Print `text` on stderr."""
    terminal.show(text, sys.stderr)


def refuse(text: str) -> NoReturn:
    """Exit with 2, for an invalid request, after one line on stderr."""
    note(f"error: {' '.join(text.split())}")
    raise SystemExit(2)


@contextlib.contextmanager
def refused_if_invalid() -> Iterator[None]:
    """Turn a `ValueError` in the block into the exit of `refuse`."""
    try:
        yield
    except ValueError as error:
        refuse(str(error))
