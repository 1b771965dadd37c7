"""Frame of every stage: find a committed result, else make it; log start and end, enforce the deadline."""

import contextlib
import dataclasses
import logging
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any
from uuid import uuid4

from storage import files, manifest, reference, uses
from storage.admin import catalog
from storage.error_policy import Permanent
from storage.failpoints import failpoint
from storage.kinds import U
from storage.manifest import Manifest
from storage.uri import URI, Root, redact_text
from tasks.jobs.deadline import deadline
from tasks.stages import Stage


class ParentChanged(Permanent, RuntimeError):
    """A parent was deleted and made again with other bytes than those that a result was made from."""


@dataclasses.dataclass
class Step:
    """One stage of one run, as the summary shows it."""

    name: str
    uri: URI | None
    """Its result, if it has one."""
    reused: bool = False
    """True if the result existed already."""
    seconds: float = 0.0
    """Duration in this run, without the wait for its turn."""
    started: float = dataclasses.field(default_factory=time.monotonic)


_run: ContextVar[tuple[Callable[[Iterable[URI]], None], list[Step], float] | None] = ContextVar("run", default=None)
"""Function that names what the run uses, its stages so far, and its start by the monotonic clock."""
_step: ContextVar[Step | None] = ContextVar("step", default=None)


@contextlib.contextmanager
def using(root: Root, uris: Iterable[URI], *, marker: str = "") -> Iterator[list[Step]]:
    """Protect `uris` and the results of stages inside the block from gc; collect the stages that succeed, in order.

    The use marker is called `marker`, or after the run.
    """
    from prefect.runtime import flow_run

    with uses.using(root, uris, run=marker or str(flow_run.id or uuid4())) as use:
        stages: list[Step] = []
        token = _run.set((use, stages, time.monotonic()))
        try:
            yield stages
        finally:
            _run.reset(token)


def make_once(
    stage: Stage[U], make: Callable[[], object], *, name: str | None = None, timeout_s: float | None = None
) -> U:
    """Return the result of `stage`; call `make` to commit it, unless it is committed with all its files.

    `name` is that of the stage in logs and the summary, if a run has it twice.

    Raises:
        Damaged: A file of the committed result is missing or has the wrong size.
        ParentChanged: The result was made from other bytes of its parents than they have now.
        DeadlineExceeded: `make` took longer than `timeout_s`.
    """
    target = stage.target
    with step(name or stage.kind.stage, target, parents=stage.parents, timeout_s=timeout_s) as current:
        if not current.reused:
            make()
    return target


@contextlib.contextmanager
def step(
    name: str,
    uri: URI | None = None,
    *,
    parents: Mapping[str, URI] | None = None,
    reused: bool = False,
    timeout_s: float | None = None,
) -> Iterator[Step]:
    """Log start, end and duration of a stage; `reused` is set if `uri` is committed with all its files.

    A stage without a result says itself whether it is `reused`. Raises as `make_once` does.
    """
    log = logger()
    current = Step(name=name, uri=uri)
    _step.set(current)
    use, stages, _ = _run.get() or (None, [], 0.0)
    if use is not None and uri is not None:
        use([uri])
    recorded = manifest.find(uri) if uri is not None else None
    if uri is not None and recorded is not None:
        _check_parents(uri, recorded, parents or {})
    current.reused = reused or recorded is not None
    if not current.reused:
        log.info("%s started", name, extra={"stage": name, "event": "start"})
    with deadline(timeout_s):
        failpoint(name, str(uri))
        yield current
    current.seconds = time.monotonic() - current.started
    took = "reused" if current.reused else f"done in {current.seconds:.1f} s"
    log.info("%s %s%s", name, took, f": {uri}" if uri else "", extra={"stage": name, "event": "end"})
    stages.append(current)


def _check_parents(uri: URI, result: Manifest, parents: Mapping[str, URI]) -> None:
    """Raise `ParentChanged` if the `result` at `uri` was made from other bytes than `parents`, by role, have now."""
    for role, parent in parents.items():
        recorded = result.parents[role].content
        with contextlib.suppress(FileNotFoundError):  # a parent that is gone is no reason to make the result again
            if manifest.load(parent).content != recorded:
                stale = [uri, *catalog.descendants(reference.root_of(uri), uri)]
                delete = "aws s3 rm --recursive" if uri.is_s3 else "rm -r"
                raise ParentChanged(
                    f"{uri} was made from other bytes than {parent} has now, so it is not used; to make it again, run "
                    f"the same command after: {' && '.join(f'{delete} {shlex.quote(each)}' for each in stale)}"
                )


def begin_again() -> None:
    """Count the seconds of the running stage from now on: its turn has come."""
    if current := _step.get():
        current.started = time.monotonic()


def seconds_so_far() -> float | None:
    """Return the seconds since the run started; None outside a run."""
    run = _run.get()
    return time.monotonic() - run[2] if run else None


def tidy(scratch: URI) -> None:
    """Delete the scratch files of a committed result; if that fails, `data-to-model gc` deletes them later."""
    try:
        files.remove(scratch)
    except OSError as error:
        logger().warning("%s is no longer needed but cannot be deleted: %s", scratch, redact_text(str(error)))


def logger() -> "logging.Logger | logging.LoggerAdapter[Any]":
    """Return the logger of the running Prefect task or flow, or an ordinary logger outside of one."""
    if "prefect" not in sys.modules:  # what flows call runs without Prefect, too
        return logging.getLogger("pipeline")
    from prefect.exceptions import MissingContextError
    from prefect.logging import get_run_logger

    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger("pipeline")
