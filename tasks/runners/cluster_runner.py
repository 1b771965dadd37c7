"""Runner on the cluster that RAY_ADDRESS names: submits stages as jobs, or attaches to live ones, and follows them."""

import contextlib
import os
import shlex
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from uuid import UUID

from storage.uri import redact, redact_text
from tasks.jobs.deadline import DeadlineExceeded
from tasks.jobs.errors import JobFailed
from tasks.jobs.spec import JobSpec
from tasks.learning import user_code
from tasks.orchestration.stage import logger
from tasks.resources.needs import Limits
from tasks.runners import jobs_api
from tasks.runners.job_log import Follower
from tasks.runners.runner import expecting_result, job_prefix

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobSubmissionClient

_POLL_S = 0.5
"""Seconds between two questions about a job."""
_READ_PER_S = 2**20
"""Characters of logs to read per second: each question returns the whole log, so a long one is read less often."""


class ClusterRunner:
    """Jobs of one run on a cluster. They outlive its process, unless the run is cancelled or its deadline passes."""

    def __init__(self, address: str, *, poll_s: float = _POLL_S) -> None:
        self._address, self._poll_s = address, poll_s
        self._connected: JobSubmissionClient | None = None

    def run(self, spec: JobSpec[Any]) -> None:
        """Run a job, as `Runner` says, or attach to a live one for the same target.

        A head that does not answer fails the job; the next try attaches to it, if the head still knows it.
        """
        until = time.monotonic() + spec.limits.stage_s + 30  # the job enforces its own deadline
        with expecting_result(spec.stage), self._stopping(job_prefix(spec.stage)):
            job, name = self._job(spec), spec.stage.kind.stage
            logger().info("%s: job %s, in Ray's dashboard %s/#/jobs/%s", name, job, redact(self._address), job)
            self._follow(job, spec.limits, until)

    @contextlib.contextmanager
    def _answering(self) -> "Iterator[JobSubmissionClient]":
        """Yield the client of the Jobs API; turn its errors in the block into `JobFailed`."""
        try:
            yield self._client()
        except (OSError, RuntimeError) as error:
            raise JobFailed(f"Ray's head at {redact(self._address)}: {redact_text(str(error))}") from error

    def _client(self) -> "JobSubmissionClient":
        if self._connected is None:
            self._connected = jobs_api.connect(self._address)
            if os.environ.get("RAY_AUTH_MODE") != "token":
                text = "this Ray requires no token: anybody who can reach its ports can run code on it"
                logger().warning("%s (docs/SECURITY.md)", text)
            logger().info("Ray dashboard (during this run): %s", redact(self._address))
        return self._connected

    def _job(self, spec: JobSpec[Any]) -> str:
        """Return the name of the live job for the target, or submit one."""
        place, prefix = spec.write(), job_prefix(spec.stage)

        with self._answering() as client:
            jobs = _jobs(client, prefix)
            for name, job in jobs.items():
                if not job.status.is_terminal():
                    logger().info("attached to job %s, which is running already", name)
                    return name
            name = f"{prefix}{1 + max((int(name.removeprefix(prefix)) for name in jobs), default=0)}"
            entrypoint = f"exec python -m tasks.jobs {spec.stage.kind.stage} {shlex.quote(place)}"
            with user_code.packaged() as packages, jobs_api.job_runtime_env(packages) as runtime_env:
                return str(client.submit_job(entrypoint=entrypoint, submission_id=name, runtime_env=runtime_env))

    @contextlib.contextmanager
    def _stopping(self, prefix: str) -> Iterator[None]:
        """Stop the job if the run is cancelled or its deadline passes; let it go on if only this process ends.

        The job is looked for among those of the cluster, since the error may come while it is being submitted.
        """
        try:
            yield
        except JobFailed:
            raise
        except BaseException as error:
            with contextlib.suppress(Exception):
                client, is_evicted = self._client(), _is_evicted(error)
                live = [name for name, job in _jobs(client, prefix).items() if not job.status.is_terminal()]
                for name in live:
                    if not is_evicted:
                        client.stop_job(name)
                    else:
                        text = "job %s continues: the same request attaches to it, `ray job stop %s` ends it"
                        logger().warning(text, name, name)
            raise

    def _follow(self, job: str, limits: Limits, until: float) -> None:
        """Follow the job until it has succeeded; raise its error if it failed."""
        follower, read = Follower(), 0
        while True:
            with self._answering() as client:
                info = client.get_job_info(job)
            log, ended = "", info.status.is_terminal()
            with contextlib.suppress(OSError, RuntimeError):  # the node of its driver may not answer now
                log = str(self._client().get_job_logs(job))
            follower.feed(log[read:], ended=ended)
            read = max(read, len(log))
            if ended:
                break
            if time.monotonic() > until:
                limit = f"{limits.stage_s:.0f} s"
                raise DeadlineExceeded(f"job {job} is not done within {limit}; use a longer --stage-timeout")
            time.sleep(self._poll_s + read / _READ_PER_S)
        if info.status != "SUCCEEDED":
            reason = (info.message or "").partition("\n")[0]
            raise follower.error(": ".join(filter(None, [f"job {job} ended {info.status}", reason])))


def _jobs(client: "JobSubmissionClient", prefix: str) -> "dict[str, JobDetails]":
    """Return the cluster's jobs whose names begin with `prefix`, by name."""
    return {
        job.submission_id: job
        for job in client.list_jobs()
        if job.submission_id and job.submission_id.startswith(prefix)
    }


def _is_evicted(error: BaseException) -> bool:
    """Return True if SIGTERM ends this process, as in an eviction, and nobody has cancelled the run."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import TerminationSignal
    from prefect.runtime import flow_run

    if not isinstance(error, TerminationSignal):
        return False
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # a server that does not answer now
        state = client.read_flow_run(UUID(flow_run.id)).state
        return not (state and (state.is_cancelling() or state.is_cancelled()))
    return True
