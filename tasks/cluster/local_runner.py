"""Runner on a local Ray, which belongs to the run: it starts Ray, submits stages as jobs and follows their logs."""

import contextlib
import os
import secrets
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.process import reach_loopback_directly
from storage.uri import redact_text
from tasks.cluster import jobs_api
from tasks.cluster.child import Child
from tasks.cluster.job_link import job_link
from tasks.cluster.job_log import Follower, JobFailed, JobRefused
from tasks.cluster.local_ray import await_ray, start_ray
from tasks.cluster.runner import expecting_result, job_prefix
from tasks.jobs import dashboard
from tasks.jobs.deadline import DeadlineExceeded
from tasks.jobs.spec import JOB_NAME, JobSpec, write_digested
from tasks.orchestration.stage import logger
from tasks.resources import machine

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_POLL_S, _LONGEST_POLL_S, _POLL_SHARE = 0.25, 10.0, 0.02
"""Seconds between two looks at a job's log, longest seconds between two questions to Ray about a job, and the share of
the job's running time to wait: each answer keeps half of Ray busy, and the log says when the work is over."""
_SILENCE_S = 60
"""Seconds without an answer from Ray after which a job counts as lost."""
_LOCAL_ENV = {
    # Nobody preempts this machine, and the watcher's processes cost each job a second of a core.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # No other machine may join: the node's address becomes 127.0.0.1, and Ray listens on that alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
"""Additional environment of a local Ray."""


class LocalRunner:
    """The local Ray of one run, and its jobs."""

    def __init__(self, *, wanted: bool) -> None:
        self._child: Child | None = None
        self._client: JobSubmissionClient | None = None
        self._address = ""
        self._logs = Path()
        self._how_to_log_in = ""
        if wanted:
            self._start()

    def run(self, stage: str, spec: JobSpec) -> None:
        """Run a job, as `Runner` says; stop it if the run is interrupted."""
        client = self.connect()
        job = self._submit(client, stage, spec)
        try:
            with expecting_result(spec), self._link(stage, job):
                self._follow(client, job, stage, deadline_s=spec.deadline_s)
        except JobFailed:
            raise
        except BaseException:
            with contextlib.suppress(Exception):
                client.stop_job(job)
            raise

    def dismiss(self) -> None:
        """Do what `end` does, but return at once."""
        if self._child is not None:
            self._child.dismiss()

    def end(self) -> None:
        """End Ray and everything that runs on it."""
        if self._child is not None:
            self._child.end()
            self._child = self._client = None

    def _start(self) -> None:
        # Ray reads these when it is imported, here for the client and in the child.
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)
        reach_loopback_directly()
        path = {"PYTHONPATH": os.pathsep.join(filter(None, [str(jobs_api.CODE), os.environ.get("PYTHONPATH")]))}
        env = os.environ | jobs_api.JOB_ENV | _LOCAL_ENV | path
        # The monitor is for clusters that grow; its status output for this one is on the dashboard's first page.
        options = [] if dashboard.kind() == dashboard.FULL else ["--no-monitor"]
        self._child, self._address, folder = start_ray(env, *options)
        token = Path(folder, "token")
        token.touch(mode=0o600)
        token.write_text(os.environ["RAY_AUTH_TOKEN"] + "\n")
        self._logs = Path(folder, "ray", "session_latest", "logs")
        self._how_to_log_in = f". The token is in {token}"

    def connect(self) -> "JobSubmissionClient":
        """Return a client of the Jobs API once that answers; start Ray again if it has died."""
        if self._child is not None and not self._child.running:
            logger().warning("the local Ray has stopped; starting another")
            self.end()
        if self._client is not None:
            return self._client
        if self._child is None:
            self._start()
        assert self._child is not None
        import ray.job_submission  # noqa: F401 - takes a second, while the child takes longer to start

        await_ray(self._child, self._address)
        try:
            self._client = jobs_api.connect(self._address)
        except Exception as error:
            reason = redact_text(str(error))
            raise JobRefused(f"the local Ray: no Ray Jobs API answers there: {reason}; run again") from error
        logger().info("Ray dashboard (during this run): %s%s", self._address, self._how_to_log_in)
        return self._client

    def _submit(self, client: "JobSubmissionClient", stage: str, spec: JobSpec) -> str:
        spec, prefix = spec.model_copy(update={"threads": machine.cores()}), job_prefix(stage, spec)
        place = write_digested(spec.scratch, stage, spec.model_dump_json(indent=1).encode())
        python = shlex.quote(sys.executable)
        # Ray starts workers by a line of the shell.
        runtime_env: dict[str, Any] = {"py_executable": python} if python != sys.executable else {}
        try:
            number = 1 + sum((job.submission_id or "").startswith(prefix) for job in client.list_jobs())
            name = f"{prefix}{number}"
            entrypoint = f"exec env {JOB_NAME}={name} {python} -m tasks.jobs.{stage} {shlex.quote(place)}"
            return str(client.submit_job(entrypoint=entrypoint, submission_id=name, runtime_env=runtime_env))
        except (OSError, RuntimeError) as error:
            raise JobFailed(f"Ray did not accept the job: {error}") from error

    def _link(self, stage: str, job: str) -> contextlib.AbstractContextManager[None]:
        return job_link(stage, job, self._address, how_to_log_in=self._how_to_log_in, is_kept=False)

    def _follow(self, client: "JobSubmissionClient", job: str, stage: str, *, deadline_s: float) -> None:
        deadline = time.monotonic() + deadline_s + 30  # the job enforces its own deadline; this one is for a stuck job
        follower = Follower(stage)
        begun = answered = time.monotonic()
        while True:
            try:
                status = client.get_job_status(job)
                follower.read_file(self._log(job), ended=status.is_terminal())
            except (OSError, RuntimeError) as error:
                if (self._child and not self._child.running) or time.monotonic() - answered > _SILENCE_S:
                    raise JobFailed(f"Ray stopped responding while job {job} was running: {error}") from error
                time.sleep(_POLL_S)
                continue
            answered = time.monotonic()
            if status.is_terminal():
                break
            if time.monotonic() > deadline:  # `run` then stops the job
                raise DeadlineExceeded(f"{job}: not done within {deadline_s:.0f} s; increase --deadline MINUTES")
            self._wait(job, follower, (time.monotonic() - begun) * _POLL_SHARE)
        follower.raise_unless_succeeded(client, job, status)

    def _wait(self, job: str, follower: Follower, seconds: float) -> None:
        """Wait about `seconds`; follow the job's log meanwhile, and return early once its work is over."""
        until = time.monotonic() + min(_LONGEST_POLL_S, seconds)
        while True:
            time.sleep(_POLL_S)
            with contextlib.suppress(OSError):  # `_follow` reads it again and reports what is wrong
                follower.read_file(self._log(job), ended=False)
            if follower.ended or time.monotonic() > until:
                return
            if not (self._child and self._child.running):
                return

    def _log(self, job: str) -> Path:
        return self._logs / f"job-driver-{job}.log"
