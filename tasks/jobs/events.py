"""Output of a stage for its follower: lines and marked events, to standard output or to a listener."""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator

PROGRESS = "::progress "
"""Start of a line with progress as JSON: what, done, total, note, fraction, epoch, and the job's time."""
EPOCHS = "epochs"
"""`what` of progress about a whole epoch, of which every line is shown."""
ERROR = "::error "
"""Start of the line with the error that ended the job as JSON: message, permanent."""

_said_at = float("-inf")
_listener: Callable[[str], None] | None = None
"""Receives the lines of the stage that runs in this process, if any; else they are printed."""


@contextlib.contextmanager
def redirect_lines(write: Callable[[str], None]) -> Iterator[None]:
    """Send the lines of a stage inside the context to `write`, one at a time, instead of standard output."""
    global _listener
    _listener = write
    try:
        yield
    finally:
        _listener = None


def progress(
    what: str,
    done: int,
    total: int,
    note: str = "",
    *,
    fraction: float | None = None,
    epoch: int | None = None,
) -> None:
    """Report that `done` of `total` is done, at most twice a second; epochs and the last one are always reported.

    `fraction` is the share of the whole job that is done, if it differs from `done / total`.
    """
    global _said_at
    if what != EPOCHS and done < total and time.monotonic() - _said_at < 0.5:
        return
    _said_at = time.monotonic()
    fraction = done / max(total, 1) if fraction is None else fraction
    facts = {"fraction": fraction, "epoch": epoch, "at": time.time()}
    write_event(PROGRESS, what=what, done=done, total=total, note=note, **facts)


def write_event(marker: str, **content: object) -> None:
    """Write an event that the follower understands: `marker`, then `content` as JSON."""
    write_line(f"{marker}{json.dumps(content)}")


def write_line(line: str) -> None:
    """Write `line` for the follower; not by `print`, since Ray Train repeats that in its own log."""
    if _listener is not None:
        _listener(line)
        return
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
