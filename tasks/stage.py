"""What every stage does around its work: find a committed result, say what happens, keep the time."""

import contextlib
import dataclasses
import logging
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from storage import files, manifest
from storage.hooks import reached
from storage.uri import URI, masked
from tasks.jobs.deadline import deadline


@dataclasses.dataclass
class Stage:
    """One stage of one run, as the summary shows it."""

    name: str
    """What it does, such as `train`."""
    uri: URI | None
    """Where its result lies."""
    reused: bool = False
    """Whether the result was there already."""
    seconds: float = 0.0
    """How long it took, here and now."""


_stages: ContextVar[list[Stage] | None] = ContextVar("stages", default=None)


@contextlib.contextmanager
def collected() -> Iterator[list[Stage]]:
    """The stages that end well inside the context, in their order."""
    stages: list[Stage] = []
    token = _stages.set(stages)
    try:
        yield stages
    finally:
        _stages.reset(token)


@contextlib.contextmanager
def stage(
    name: str, uri: URI | None = None, *, reused: bool = False, deadline_s: float | None = None
) -> Iterator[Stage]:
    """A stage with its start, end and time logged; `reused` is set when `uri` is committed and every file is there.

    Raises `manifest.Damaged` when it is committed but not whole, `DeadlineExceeded` when it takes longer than
    `deadline_s` (a Ray job minds its own).
    """
    log = logger()
    started = time.monotonic()
    current = Stage(name=name, uri=uri)
    current.reused = reused or (uri is not None and manifest.find(uri) is not None)
    if not current.reused:
        log.info("%s started", name, extra={"stage": name, "event": "start"})
    with deadline(deadline_s):
        reached(name, str(uri))
        yield current
    current.seconds = time.monotonic() - started
    took = "reused" if current.reused else f"done in {current.seconds:.1f} s"
    log.info("%s %s%s", name, took, f": {uri}" if uri else "", extra={"stage": name, "event": "end"})
    stages = _stages.get()
    if stages is not None:
        stages.append(current)


def tidy(scratch: URI) -> None:
    """Remove what a committed result needs no more; what cannot be removed now is left to `python -m storage gc`."""
    try:
        files.remove(scratch)
    except Exception as error:
        if not files.is_trouble(error):
            raise
        logger().warning("%s is not needed any more but cannot be removed: %s", scratch, masked(str(error)))


def logger() -> Any:
    """The logger of the running Prefect task or flow, and outside of one an ordinary logger."""
    from prefect.exceptions import MissingContextError
    from prefect.logging import get_run_logger

    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger("pipeline")
