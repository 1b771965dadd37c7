"""Entry point of every Ray job: parse the spec, enforce the deadline, work, report errors."""

import argparse
import importlib
import os
import secrets
import shlex
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from storage import manifest
from storage.failpoints import failpoint
from storage.process import gc_paused
from storage.uri import URI
from tasks.jobs import errors, events
from tasks.jobs.deadline import deadline
from tasks.jobs.events import ERROR
from tasks.jobs.spec import JobSpec
from tasks.stages import Embed, Ingest, Predict, Preprocess, Train

if TYPE_CHECKING:
    from tasks.jobs.local_data import LocalData

_SPECS: dict[str, type[JobSpec[Any]]] = {
    "ingest": JobSpec[Ingest],
    "preprocess": JobSpec[Preprocess],
    "embed": JobSpec[Embed],
    "train": JobSpec[Train],
    "predict": JobSpec[Predict],
}


def main() -> None:
    """Run a stage on the Ray that RAY_ADDRESS names; the command line gives the stage, and the spec's path or URI.

    The process ends with exit code 0, with 1 after a line that describes the error, or with 2 for wrong usage.
    """
    parser = argparse.ArgumentParser("python -m tasks.jobs")
    parser.add_argument("stage", choices=_SPECS)
    written = "a run writes it below <root>/runs/ and deletes it once the job is done"
    parser.add_argument("spec", help=f"path or s3:// URI of a job's <stage>-<SHA-256>.json; {written}")
    arguments = parser.parse_args()
    place = arguments.spec
    uri = URI(place if "://" in place else os.path.abspath(place))
    try:
        spec = _SPECS[arguments.stage].read(uri)
        with deadline(spec.limits.stage_s):
            _work_on_ray(spec)
    except Exception as error:
        failure = errors.job_error(error, folder=uri.parent)
        events.write_event(ERROR, message=str(failure), permanent=isinstance(failure, errors.JobRefused))
        raise SystemExit(1) from error


def _work_on_ray(spec: JobSpec[Any]) -> None:
    with gc_paused():  # a run without Ray needs none of these imports
        import ray

        from tasks.jobs.ray_data import RayData, configure
        from tasks.resources import scaling

    address = os.environ.get("RAY_ADDRESS", "local")
    if address == "local":  # run by hand: without a token Ray would write one that every user can read
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    python = shlex.quote(sys.executable)
    # Ray starts workers by a line of the shell.
    runtime_env = {"py_executable": python} if spec.threads is not None and python != sys.executable else None
    ray.init(address, logging_level="WARNING", runtime_env=runtime_env)
    configure(max_cpus=spec.threads)
    if spec.threads is None and not scaling.cpus(scaling.nodes()):
        missing = "a stage needs 1 CPU, but no node of this cluster has any; add a node"
        scaling.await_nodes([{"CPU": 1}], missing, limit_s=spec.limits.stall_s, on_wait=events.write_line)
    _work(spec, RayData())
    time.sleep(0.2)  # for the last lines that workers print: Ray collects them ten times a second
    ray.shutdown()  # else the interpreter does this as it exits, half a second later


def run_here(spec: JobSpec[Any], *, tell: Callable[[str], None]) -> None:
    """Run the job of `spec` in this process; send its lines to `tell`, and let its errors pass unchanged."""
    from tasks.jobs.local_data import LocalData  # imports pyarrow

    with events.redirect_lines(tell), deadline(spec.limits.stage_s):
        _work(spec, LocalData())


def _work(spec: JobSpec[Any], data: "LocalData") -> None:
    """Run the work of `spec`, unless another job has done it; import only what this kind of job needs."""
    stage = spec.stage
    if not manifest.is_committed(stage.target):
        failpoint("job", stage.target)
        importlib.import_module(f"tasks.jobs.{stage.kind.stage}.job").run(spec, data)
