"""What every job's driver does around its work: read the spec, mind the deadline, say what goes on, end plainly."""

import contextlib
import importlib
import json
import logging
import os
import secrets
import sys
import time
from typing import Any

import ray
import ray.data

from storage import files, lease, manifest
from storage.hooks import reached
from storage.lease import Lease
from storage.uri import URI, Root
from tasks.jobs.deadline import deadline
from tasks.jobs.spec import ERROR, JOB_NAME, PROGRESS, JobSpec

PERMANENT = (
    *("ValueError", "TypeError", "FileNotFoundError", "PermissionError", "Damaged", "DiskFull"),
    *("NonFiniteLoss", "OutOfMemoryError", "DeadlineExceeded"),
)
"""Errors that the same call would meet again: nothing is gained by trying again."""

_said_at = float("-inf")


def main(stage: str, spec_type: type[JobSpec]) -> None:
    """Run a stage on the spec whose path or URI stands on the command line, on the Ray that RAY_ADDRESS names.

    Ends with exit code 0, or 1 after one line that says what went wrong.
    """
    # Imported by name, not taken from `__main__`: workers can then import what the driver sends them.
    work = importlib.import_module(f"tasks.jobs.{stage}").run
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
        with deadline(spec.deadline_s), _lease(spec) as held:
            if held:
                reached("job", spec.target)
                if "RAY_ADDRESS" not in os.environ:  # run by hand: Ray would write a token of its own for all to read
                    os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
                ray.init(logging_level="WARNING")
                configure_ray_data(max_cpus=spec.threads)
                work(spec)
    except Exception as error:
        cause = root_cause(error)
        if files.is_disk_full(cause) and not isinstance(cause, files.DiskFull):  # what Ray Train wrote itself
            cause = files.DiskFull(f"the disk is full: {cause}; make room, then give the same command again")
        kinds = {kind.__name__ for kind in type(cause).__mro__}
        message = str(cause).strip()[:2000]
        say(ERROR, type=type(cause).__name__, message=message, permanent=not kinds.isdisjoint(PERMANENT))
        raise SystemExit(1) from error


def _lease(spec: JobSpec) -> contextlib.AbstractContextManager[Lease | None]:
    """The right to work on the target, which others wait for; none when one of them has committed it meanwhile."""
    return lease.held(
        Root(spec.storage),
        spec.target,
        owner=os.environ.get(JOB_NAME, f"process {os.getpid()}"),
        is_done=lambda: files.exists(spec.target.child(manifest.NAME)),
        on_wait=lambda other: print(
            f"WARNING: {other.owner} on {other.host} is at work on {spec.target}: waiting for its result", flush=True
        ),
    )


def progress(
    what: str, done: int, total: int, note: str = "", *, fraction: float | None = None, epoch: int | None = None
) -> None:
    """Tell whoever follows the log that `done` of `total` is done; at most twice a second, the last one always.

    `fraction` is how much of the whole job is done, where that is something else.
    """
    global _said_at
    if done < total and time.monotonic() - _said_at < 0.5:
        return
    _said_at = time.monotonic()
    fraction = done / max(total, 1) if fraction is None else fraction
    say(PROGRESS, what=what, done=done, total=total, note=note, fraction=fraction, epoch=epoch)


def say(marker: str, **content: Any) -> None:
    """Write one line for the follower; past `print`, which Ray Train repeats in its own log."""
    sys.stdout.write(f"{marker}{json.dumps(content)}\n")
    sys.stdout.flush()


def configure_ray_data(*, max_cpus: int | None) -> None:
    """Deterministic order everywhere, no progress bars or plans among the job's own lines.

    On a small machine no more tasks at once than it has cores: each starts a process, which takes a core for seconds.
    """
    context = ray.data.DataContext.get_current()
    context.execution_options.preserve_order = True
    if max_cpus:
        context.execution_options.resource_limits = context.execution_options.resource_limits.copy(cpu=max_cpus)
    context.raise_original_map_exception = True  # else a worker's error comes without its message and its type
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.WARNING)


def root_cause(error: BaseException) -> BaseException:
    """The error that somebody can act on: under what Ray, Ray Train and Ray Data wrapped around it."""
    while True:
        failures = getattr(error, "worker_failures", None) or {}
        candidates = [*failures.values(), getattr(error, "cause", None), error.__cause__, error.__context__]
        inner = next((one for one in candidates if isinstance(one, BaseException) and one is not error), None)
        if inner is None or not type(error).__module__.startswith("ray"):
            return error
        error = inner
