"""Interface of what runs a stage's job, the runner without Ray, and the retry policy of tasks that use them."""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from storage import manifest
from tasks.jobs import errors, main
from tasks.jobs.deadline import DeadlineExceeded
from tasks.jobs.errors import JobFailed, JobRefused
from tasks.orchestration.stage import tidy
from tasks.resources import machine
from tasks.runners.job_log import Follower
from tasks.stages import JobSpec, write_digested

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import State, TaskRun


class Runner(Protocol):
    """Runs jobs; implemented by `LocalRunner`, `ClusterRunner` and `InProcessRunner`."""

    def run(self, stage: str, spec: JobSpec) -> None:
        """Run `tasks.jobs.STAGE` until its target is committed; then remove its scratch folder.

        Its log and progress go to the logger of the running task. Raises `JobRefused` if a retry would meet the same
        error again, else `JobFailed`.
        """


def job_prefix(stage: str, spec: JobSpec) -> str:
    """Return how the names of all Ray jobs for the target begin, since one cluster may serve several roots."""
    return f"{stage}-{spec.target.fingerprint}-{hashlib.sha256(spec.storage.encode()).hexdigest()[:8]}-"


@contextlib.contextmanager
def expecting_result(spec: JobSpec) -> Iterator[None]:
    """Raise `JobFailed` if the target is not committed after the job in the block, else delete the job's scratch.

    When two runs make one URI, the first to commit wins; the other may fail over that, which is a success.
    """
    try:
        yield
        if not manifest.is_committed(spec.target):
            raise JobFailed(f"the job succeeded, but {spec.target} is not committed; check that all nodes share it")
    except JobFailed:
        if not manifest.is_committed(spec.target):
            raise
    tidy(spec.scratch)


class InProcessRunner:
    """Runner for `--workers 0`: jobs run in this process, so that breakpoints in model and training loop work."""

    def run(self, stage: str, spec: JobSpec) -> None:
        """Run the job in this process, as `Runner` says; the cause of a `JobFailed` is the original error."""
        follower = Follower()
        spec = spec.model_copy(update={"threads": machine.cores()})
        write_digested(spec.scratch, stage, spec.model_dump_json(indent=1).encode())  # to repeat it by hand
        with expecting_result(spec):
            try:
                main.run_here(spec, tell=follower.line)
            except DeadlineExceeded:
                raise
            except Exception as error:
                raise errors.job_error(error, folder=spec.scratch) from error


def _may_help(task: "Task[..., Any]", run: "TaskRun", state: "State[Any]") -> bool:
    """Return True if a retry of the failed task may succeed."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, JobFailed) and not isinstance(error, JobRefused)


retry_on_fault: dict[str, Any] = {
    "retries": 3,
    "retry_delay_seconds": [2, 10, 60],  # a lost head of Ray needs about a minute to come back
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": _may_help,
}
"""Options of a Prefect task that runs a job: retry where a fresh job can help, and only there."""
