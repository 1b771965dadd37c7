"""Runner on the cluster that RAY_ADDRESS names: submits stages as jobs, or attaches to live ones, and follows them."""

import contextlib
import functools
import shlex
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass
from uuid import UUID

from storage import lease, manifest
from storage.lease import Held
from storage.uri import redact, redact_text
from tasks.jobs.deadline import DeadlineExceeded
from tasks.jobs.spec import JOB_NAME, JobSpec, write_digested
from tasks.learning import user_code
from tasks.orchestration.stage import logger
from tasks.runners import jobs_api
from tasks.runners.job_link import show_job_link
from tasks.runners.job_log import Follower, JobFailed
from tasks.runners.log_tail import LogTail
from tasks.runners.ray_head import RayHead
from tasks.runners.runner import expecting_result, job_prefix

if TYPE_CHECKING:
    from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

_POLL_S, _AGAIN_S = 0.5, 2.0
_SILENCE_S = 60
"""Seconds without a line in a job's log after which Ray is asked about the job, and the log is attached to again."""
_FLOW_RUN = "flow_run"
"""Key in a job's metadata with the id of the flow run that submitted it."""
_MAX_RESUBMISSIONS = 3
"""Jobs submitted again after the cluster has forgotten one: the job itself may be what ends the head."""


class ClusterRunner:
    """Jobs of one run on a cluster. They outlive its process, unless the run is cancelled or its deadline passes."""

    def __init__(self, address: str, *, has_answered: bool) -> None:
        self._address = address
        self._head = RayHead(address, has_answered=has_answered)

    def run(self, stage: str, spec: JobSpec) -> None:
        """Run a job, as `Runner` says, or attach to a live one for the same target; wait for a head that is away."""
        until = time.monotonic() + spec.deadline_s + 30  # the job enforces its own deadline
        with expecting_result(spec):
            for resubmissions_left in reversed(range(_MAX_RESUBMISSIONS + 1)):
                with self._stopping(job_prefix(stage, spec)):
                    job = self._job(stage, spec, until)
                    show_job_link(stage, job, self._address)
                    status = self._follow(job, stage, spec, until)
                if status or manifest.is_committed(spec.target):
                    return
                _check_deadline(job, spec, until)
                if not resubmissions_left:
                    advice = "see the logs of Ray's head, which the job may have ended, then run again"
                    raise JobFailed(f"the cluster has forgotten job {job} and {_MAX_RESUBMISSIONS} before it; {advice}")
                logger().warning("the cluster no longer knows job %s: submitting it again", job)

    def _job(self, stage: str, spec: JobSpec, until: float) -> str:
        """Return the name of the live job for the target, or submit one.

        While a submitted job is pending it holds no lease. gc keeps the inputs of recent attempts, which the target's
        last lease names, so that one is written here.
        """
        with contextlib.suppress(Held):
            lease.take(spec.storage, spec.target, owner=stage, uses=spec.uses).release()
        place = write_digested(spec.scratch, stage, spec.model_dump_json(indent=1).encode())
        prefix = job_prefix(stage, spec)

        def attach_or_submit(client: "JobSubmissionClient") -> str:
            jobs = _jobs(client, prefix)
            for name, job in jobs.items():
                if not job.status.is_terminal():
                    logger().info("attached to job %s, which is running already", name)
                    return name
            name = f"{prefix}{1 + max((int(name.removeprefix(prefix)) for name in jobs), default=0)}"
            entrypoint = f"exec env {JOB_NAME}={name} python -m tasks.jobs.{stage} {shlex.quote(place)}"
            options = {"entrypoint": entrypoint, "submission_id": name, "metadata": {_FLOW_RUN: _flow_run()}}
            return str(client.submit_job(runtime_env=runtime_env, **options))

        with user_code.packaged() as packages, jobs_api.job_runtime_env(packages) as runtime_env:
            return self._head.ask(attach_or_submit, until=until)

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
                client, is_evicted = self._head.client(), _is_evicted(error)
                live = {name: job for name, job in _jobs(client, prefix).items() if not job.status.is_terminal()}
                for name, job in live.items():
                    if not is_evicted and (job.metadata or {}).get(_FLOW_RUN, "") == _flow_run() != "":
                        client.stop_job(name)
                    else:
                        text = "job %s goes on: the same request attaches to it, `ray job stop %s` ends it"
                        logger().warning(text, name, name)
            raise

    def _follow(self, job: str, stage: str, spec: JobSpec, until: float) -> "JobStatus | None":
        """Follow the job until it has succeeded; return None if the cluster does not know it."""
        follower, read = Follower(stage), 0
        while True:
            if not follower.ended:
                read = self._read_live(follower, job, read, until)
            status = self._status(job, until)
            if status is None:
                return None
            if status.is_terminal():
                break
            _check_deadline(job, spec, until)
            time.sleep(_POLL_S if follower.ended else _AGAIN_S)
        self._read_rest(follower, job, read)
        if status != "SUCCEEDED":
            raise follower.error(f"job {job} ended {status}{self._reason(job)}")
        return status

    def _read_live(self, follower: Follower, job: str, read: int, until: float) -> int:
        """Pass on the log beyond its first `read` characters until it ends or falls silent; return its new length."""
        heard_at = time.monotonic()
        with contextlib.closing(LogTail(self._head.client(), job, skip=read)) as tail:
            while not follower.ended and time.monotonic() - heard_at < _SILENCE_S and time.monotonic() <= until:
                text = tail.text(_POLL_S)
                if text is None:
                    logger().debug("the log of job %s ends: %s", job, tail.error)
                    if not read and isinstance(tail.error, OSError):
                        _warn_of_proxy(self._address, job)
                    break
                if text:
                    follower.feed(text)
                    read, heard_at = read + len(text), time.monotonic()
        return read

    def _status(self, job: str, until: float) -> "JobStatus | None":
        jobs = self._head.ask(lambda client: client.list_jobs(), until=until)
        return next((listed.status for listed in jobs if listed.submission_id == job), None)

    def _reason(self, job: str) -> str:
        with contextlib.suppress(OSError, RuntimeError):
            return f": {self._head.client().get_job_info(job).message}"
        return ""

    def _read_rest(self, follower: Follower, job: str, read: int) -> None:
        """Read what the log has beyond its first `read` characters."""
        try:
            follower.feed(self._head.client().get_job_logs(job)[read:], ended=True)
        except (OSError, RuntimeError) as error:
            logger().warning("the end of the log of job %s cannot be read: %s", job, redact_text(str(error)))


def _jobs(client: "JobSubmissionClient", prefix: str) -> "dict[str, JobDetails]":
    """Return the cluster's jobs whose names begin with `prefix`, by name."""
    return {
        job.submission_id: job
        for job in client.list_jobs()
        if job.submission_id and job.submission_id.startswith(prefix)
    }


def _check_deadline(job: str, spec: JobSpec, until: float) -> None:
    if time.monotonic() > until:
        raise DeadlineExceeded(f"job {job} is not done within {spec.deadline_s:.0f} s; use a longer --stage-timeout")


@functools.cache
def _warn_of_proxy(address: str, job: str) -> None:
    """Say, once per job, why its log cannot be followed if other requests to `address` go through a proxy."""
    url = urlsplit(address)
    if {url.scheme, "all"} & getproxies().keys() and not proxy_bypass(url.hostname or ""):
        text = (
            "the log of job %s comes at its end: Ray follows a log without a proxy, and %s cannot be reached directly; "
            "to follow it, open a tunnel to the head (docs/cluster.md)"
        )
        logger().warning(text, job, redact(address))


def _flow_run() -> str:
    from prefect.runtime import flow_run

    return str(flow_run.id or "")


def _is_evicted(error: BaseException) -> bool:
    """Return True if SIGTERM ends this process, as in an eviction, and nobody has cancelled the run."""
    from prefect.client.orchestration import get_client
    from prefect.exceptions import TerminationSignal

    if not isinstance(error, TerminationSignal):
        return False
    with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # a server that does not answer now
        state = client.read_flow_run(UUID(_flow_run())).state
        return not (state and (state.is_cancelling() or state.is_cancelled()))
    return True
