"""What every job's driver does around its work: read the spec, mind the deadline, say what goes on, end plainly."""

import contextlib
import json
import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from storage import files, lease, manifest
from storage.hooks import reached
from storage.lease import Lease
from storage.uri import URI, Root
from tasks.jobs.deadline import deadline
from tasks.jobs.spec import ENDED, EPOCHS, ERROR, JOB_NAME, PROGRESS, JobSpec
from tasks.learning.imports import quickly

PERMANENT = (
    *("ValueError", "TypeError", "FileNotFoundError", "PermissionError", "Damaged", "DiskFull", "WrongChecksum"),
    *("NonFiniteLoss", "OutOfMemoryError", "DeadlineExceeded"),
)
"""Errors that the same call would meet again: nothing is gained by trying again."""

_LAST_LINES_S = 0.2
"""How long the last lines that workers print may be on their way: Ray looks for them ten times a second."""
_said_at = float("-inf")
_listener: Callable[[str], None] | None = None
"""Takes the lines of the stage that runs in this process, if one does; else they are printed."""


def main(stage: str, spec_type: type[JobSpec]) -> None:
    """Run a stage on the spec whose path or URI stands on the command line, on the Ray that RAY_ADDRESS names.

    Ends with exit code 0, or 1 after a line that says what went wrong.
    """
    if len(sys.argv) != 2 or sys.argv[1].startswith("-"):
        print(
            f"usage: python -m tasks.jobs.{stage} SPEC\n\nSPEC is the path or s3:// URI of a job's spec.json, as a run "
            "leaves it below <root>/runs/.",
            file=sys.stderr,
        )
        raise SystemExit(0 if "--help" in sys.argv else 2)
    place = sys.argv[1]
    uri = URI(place if "://" in place else os.path.abspath(place))
    try:
        spec = spec_type.model_validate_json(files.read(uri))
        with held(spec) as is_ours:
            if is_ours:
                _work_on_ray(spec)
    except Exception as error:
        say(ERROR, **described(error))
        raise SystemExit(1) from error
    finally:
        tell(ENDED)


def _work_on_ray(spec: JobSpec) -> None:
    with quickly():  # a run without Ray uses the rest of this
        import ray

        from tasks.jobs import engine, ray_data
        from tasks.jobs.on_ray import OnRay

    if "RAY_ADDRESS" not in os.environ:  # run by hand: Ray would write a token of its own for all to read
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray.init(logging_level="WARNING")
    ray_data.configure(max_cpus=spec.threads)
    engine.work(spec, OnRay(threads=spec.threads))
    time.sleep(_LAST_LINES_S)
    ray.shutdown()  # else the end of the interpreter does this, after half a second


@contextlib.contextmanager
def telling(tell: Callable[[str], None]) -> Iterator[None]:
    """What a stage says inside the context goes to `tell`, a line at a time, in place of standard output."""
    global _listener
    _listener = tell
    try:
        yield
    finally:
        _listener = None


def described(error: BaseException) -> dict[str, Any]:
    """What ended a job, for those who follow it: type, message, and whether it is permanent."""
    cause = root_cause(error)
    if files.is_disk_full(cause) and not isinstance(cause, files.DiskFull):  # what Ray Train wrote itself
        cause = files.DiskFull(f"the disk is full: {cause}; make room, then give the same command again")
    kinds = {kind.__name__ for kind in type(cause).__mro__}
    message = str(cause).strip()[:2000]
    return {"type": type(cause).__name__, "message": message, "permanent": not kinds.isdisjoint(PERMANENT)}


@contextlib.contextmanager
def held(spec: JobSpec) -> Iterator[bool]:
    """A job's deadline and, as soon as nobody else has it, its lease; whether there is still something to do."""
    with deadline(spec.deadline_s), _lease(spec) as taken:
        if taken:
            reached("job", spec.target)
        yield taken is not None


def _lease(spec: JobSpec) -> contextlib.AbstractContextManager[Lease | None]:
    """The right to work on the target, which others wait for; none when one of them has committed it meanwhile."""
    return lease.held(
        Root(spec.storage),
        spec.target,
        owner=os.environ.get(JOB_NAME, f"process {os.getpid()}"),
        is_done=lambda: files.exists(spec.target.child(manifest.NAME)),
        on_wait=lambda other: tell(
            f"WARNING: {other.owner} on {other.host} is at work on {spec.target}: waiting for its result"
        ),
    )


def progress(
    what: str, done: int, total: int, note: str = "", *, fraction: float | None = None, epoch: int | None = None
) -> None:
    """Tell whoever follows the log that `done` of `total` is done; at most twice a second, epochs and the last always.

    `fraction` is how much of the whole job is done, where that is something else.
    """
    global _said_at
    if what != EPOCHS and done < total and time.monotonic() - _said_at < 0.5:
        return
    _said_at = time.monotonic()
    fraction = done / max(total, 1) if fraction is None else fraction
    say(PROGRESS, what=what, done=done, total=total, note=note, fraction=fraction, epoch=epoch)


def say(marker: str, **content: Any) -> None:
    """Tell the follower something that it understands."""
    tell(f"{marker}{json.dumps(content)}")


def tell(line: str) -> None:
    """Tell whoever follows this stage `line`; past `print`, which Ray Train repeats in its own log."""
    if _listener is not None:
        _listener(line)
        return
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def root_cause(error: BaseException) -> BaseException:
    """The error that somebody can act on: under what Ray, Ray Train and Ray Data wrapped around it."""
    while True:
        failures = getattr(error, "worker_failures", None) or {}
        candidates = [*failures.values(), getattr(error, "cause", None), error.__cause__, error.__context__]
        inner = next((one for one in candidates if isinstance(one, BaseException) and one is not error), None)
        if inner is None or not type(error).__module__.startswith("ray"):
            return error
        error = inner
