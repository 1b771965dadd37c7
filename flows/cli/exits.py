"""Exit codes of the commands, and the line on stderr that explains a failure."""

import contextlib
import os
import select
import sys
from collections.abc import Callable, Iterator
from typing import NoReturn

from storage import error_policy, terminal

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


def guarded(work: Callable[[], int]) -> int:
    """Run `work` and return its exit code; report a failure or an interruption on stderr, but not a closed pipe."""
    try:
        return work()
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
