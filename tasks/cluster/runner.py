"""Interface of what runs a stage's job, on Ray or in this process, and the retry policy of tasks that use it."""

from typing import Any, Protocol

from storage.error_policy import is_permanent
from storage.uri import URI
from tasks.cluster.job_log import JobFailed
from tasks.jobs.spec import JobSpec

GRACE_S = 60
"""Seconds that a stage with a job may take beyond its deadline: the job enforces the deadline itself."""


class Runner(Protocol):
    """Runs jobs; implemented by `ray_jobs.RayJobs` and `in_process.InProcess`."""

    def run(self, stage: str, spec: JobSpec, *, target: URI, scratch: URI) -> None:
        """Run a job until `target` is committed; its log and progress go to the logger of the running task.

        Args:
            stage: Name of the job, such as `train`: the module below `tasks.jobs`.
            spec: Parameters of the job.
            target: URI of the result.
            scratch: Folder for the spec and the attempts; removed after the job has succeeded.

        Raises:
            JobRefused: A retry would meet the same error again.
            JobFailed: Any other error.
        """


def _may_help(task: Any, run: Any, state: Any) -> bool:
    """Return True if a retry of the failed task may succeed."""
    error = state.result(raise_on_failure=False)
    return isinstance(error, JobFailed) and not is_permanent(error)


retry_on_fault: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": [2, 10],
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": _may_help,
}
"""Options of a Prefect task that runs a job: retry where a fresh job can help, and only there."""
