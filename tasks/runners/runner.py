"""Interface of what runs a stage's job, the runner without Ray, and the retry policy of tasks that use them."""

import contextlib
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from storage import manifest
from storage.kinds import U
from tasks.jobs import errors, main
from tasks.jobs.deadline import DeadlineExceeded
from tasks.jobs.errors import JobFailed, JobRefused
from tasks.jobs.spec import JobSpec
from tasks.orchestration.stage import make_once, tidy
from tasks.resources import machine
from tasks.resources.needs import ANY, Limits, Needs
from tasks.runners.job_log import Follower
from tasks.stages import Stage

if TYPE_CHECKING:
    from prefect import Task
    from prefect.client.schemas.objects import State, TaskRun


class Runner(Protocol):
    """Runs jobs; implemented by `LocalRunner`, `ClusterRunner` and `InProcessRunner`."""

    def run(self, spec: JobSpec[Any]) -> None:
        """Run the job of `spec` until its target is committed; then remove its scratch folder.

        Its log and progress go to the logger of the running task. Raises `JobRefused` if a retry would meet the same
        error again, else `JobFailed`.
        """


def run_once(
    stage: Stage[U], runner: Runner, *, limits: Limits = Limits(), needs: Needs = ANY, name: str | None = None
) -> U:
    """Return the result of `stage`; let `runner` make it unless it is committed: see `make_once`."""
    return make_once(stage, lambda: runner.run(JobSpec(stage=stage, limits=limits, needs=needs)), name=name)


def job_prefix(stage: Stage[Any]) -> str:
    """Return how the names of all Ray jobs for `stage` begin, since one cluster may serve several roots."""
    root = hashlib.sha256(stage.storage.encode()).hexdigest()[:8]
    return f"{stage.kind.stage}-{stage.target.fingerprint}-{root}-"


@contextlib.contextmanager
def expecting_result(stage: Stage[Any]) -> Iterator[None]:
    """Raise `JobFailed` if the target is not committed after the job in the block, else delete the job's scratch.

    When two runs make one URI, the first to commit wins; the other may fail over that, which is a success.
    """
    try:
        yield
        if not manifest.is_committed(stage.target):
            raise JobFailed(f"the job succeeded, but {stage.target} is not committed; check that all nodes share it")
    except JobFailed:
        if not manifest.is_committed(stage.target):
            raise
    tidy(stage.scratch)


class InProcessRunner:
    """Runner for `--workers 0`: jobs run in this process, so that breakpoints in model and training loop work."""

    def run(self, spec: JobSpec[Any]) -> None:
        """Run the job in this process, as `Runner` says; the cause of a `JobFailed` is the original error."""
        follower, spec = Follower(), spec.model_copy(update={"threads": machine.cores()})
        spec.write()  # to repeat it by hand
        with expecting_result(spec.stage):
            try:
                main.run_here(spec, tell=follower.line)
            except DeadlineExceeded:
                raise
            except Exception as error:
                raise errors.job_error(error, folder=spec.stage.scratch) from error


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
