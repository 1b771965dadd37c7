"""Runner on Ray: submits stages as jobs to a local Ray or the cluster that RAY_ADDRESS names, and follows them."""

import contextlib
import hashlib
import os
import secrets
import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import UUID

from storage import manifest
from storage.process import reach_loopback_directly
from storage.uri import redact, redact_text
from tasks.cluster import jobs_api
from tasks.cluster.child import Child
from tasks.cluster.job_log import Follower, JobFailed, JobRefused
from tasks.cluster.local_ray import await_ray, start_ray
from tasks.jobs import dashboard
from tasks.jobs.deadline import DeadlineExceeded
from tasks.jobs.spec import JOB_NAME, JobSpec, write_digested
from tasks.learning import user_code
from tasks.orchestration.stage import logger, tidy
from tasks.resources import capacity, machine

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_POLL_S, _LONGEST_POLL_S, _POLL_SHARE = 0.25, 2.0, 0.02
"""Shortest and longest seconds between two questions to Ray about a job, and the share of the job's running time to
wait: a longer job is asked about more rarely, since each answer keeps half of Ray busy."""
_LONGEST_LOCAL_POLL_S = 10.0
"""Longest interval for a local job: its log is a file here, which says when its work is over unless it is killed."""
_SILENCE_S = 60
"""Seconds without an answer from Ray after which a job counts as lost."""
_LOCAL_ENV = {
    # Nobody preempts this machine, and the watcher's processes cost each job a second of a core.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    # No other machine may join: the node's address becomes 127.0.0.1, and Ray listens on that alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
"""Additional environment of a local Ray."""


class RayJobs:
    """The Ray of one run: a local one that the run owns, or the cluster that RAY_ADDRESS names."""

    def __init__(self, *, wanted: bool) -> None:
        self._child: Child | None = None
        self._client: JobSubmissionClient | None = None
        self._address = capacity.cluster_address()
        self._local = not self._address
        self._logs = Path()
        self._how_to_log_in = ""
        if wanted and self._local:
            self._start()

    def run(self, stage: str, spec: JobSpec) -> None:
        """Run a job, or follow a live one for the same target; if interrupted, stop it unless it was found running."""
        client = self.connect()
        # A fingerprint does not depend on the storage root, and one cluster may serve several roots.
        name = f"{stage}-{spec.target.fingerprint}-{hashlib.sha256(spec.storage.encode()).hexdigest()[:8]}-"
        try:
            found = self._live_job(client, name)
        except (OSError, RuntimeError) as error:
            raise JobFailed(f"Ray's jobs cannot be listed: {error}") from error
        job = found or self._submit(client, stage, name, spec)
        link: UUID | None = None
        try:
            link = self._link(stage, job)
            self._follow(client, job, stage, deadline_s=spec.deadline_s)
            if not manifest.is_committed(spec.target):
                raise JobFailed(
                    f"job {job} succeeded, but {spec.target} is not committed; check that all nodes share the storage"
                )
        except JobFailed:
            # When two runs make one URI, the first to commit wins; the other may fail over that, which is a success.
            if not manifest.is_committed(spec.target):
                raise
        except BaseException:
            if not found:
                with contextlib.suppress(Exception):
                    client.stop_job(job)
            raise
        finally:
            if link and self._local:
                _remove_link(link)
        tidy(spec.scratch)

    def dismiss(self) -> None:
        """Do what `end` does, but return at once."""
        if self._child is not None:
            self._child.dismiss()

    def end(self) -> None:
        """End a local Ray and everything that runs on it; leave a cluster alone."""
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
        """Return a client of the Jobs API once that answers; start a local Ray again if it has died."""
        if self._child is not None and not self._child.running:
            logger().warning("the local Ray has stopped; starting another")
            self.end()
        if self._client is not None:
            return self._client
        if self._local and self._child is None:
            self._start()
        if self._child is not None:
            import ray.job_submission  # noqa: F401 - takes a second, while the child takes longer to start

            await_ray(self._child, self._address)
        try:
            self._client = jobs_api.connect(self._address)
        except Exception as error:
            where = "the local Ray" if self._local else f"RAY_ADDRESS={redact(self._address)}"
            advice = "run again" if self._local else "check the address, RAY_AUTH_MODE and RAY_AUTH_TOKEN"
            reason = redact_text(str(error))
            raise JobRefused(f"{where}: no Ray Jobs API answers there: {reason}; {advice}") from error
        if os.environ.get("RAY_AUTH_MODE") != "token":
            logger().warning(
                "this Ray requires no token: anybody who can reach its ports can run code on it (SECURITY.md)"
            )
        logger().info("Ray dashboard (during this run): %s%s", redact(self._address), self._how_to_log_in)
        return self._client

    def _submit(self, client: "JobSubmissionClient", stage: str, prefix: str, spec: JobSpec) -> str:
        spec = spec.model_copy(update={"threads": machine.cores()}) if self._local else spec
        place = write_digested(spec.scratch, stage, spec.model_dump_json(indent=1).encode())
        python = shlex.quote(sys.executable) if self._local else "python"
        runtime_env: dict[str, Any] = {} if self._local else jobs_api.job_runtime_env()  # a local Ray has this one's
        if self._local and python != sys.executable:  # Ray starts workers by a line of the shell
            runtime_env["py_executable"] = python
        try:
            number = 1 + sum((job.submission_id or "").startswith(prefix) for job in client.list_jobs())
            name = f"{prefix}{number}"
            entrypoint = f"exec env {JOB_NAME}={name} {python} -m tasks.jobs.{stage} {shlex.quote(place)}"
            with contextlib.ExitStack() as stack:
                if not self._local:
                    runtime_env["py_modules"] += stack.enter_context(user_code.packaged())
                return str(client.submit_job(entrypoint=entrypoint, submission_id=name, runtime_env=runtime_env))
        except (OSError, RuntimeError) as error:
            raise JobFailed(f"Ray did not accept the job: {error}") from error

    def _link(self, stage: str, job: str) -> UUID | None:
        """Add a link to the job in Ray's dashboard to the artifacts of the running flow, if any; never fail the job."""
        from prefect.artifacts import create_link_artifact
        from prefect.runtime import flow_run

        if not flow_run.id:
            return None
        link = f"{redact(self._address)}/#/jobs/{job}"
        about = f"Ray dashboard of {stage} (during this run){self._how_to_log_in}"
        text = f"{stage} in the Ray dashboard"
        try:
            artifact = create_link_artifact(link, key="ray-dashboard", link_text=text, description=about)
            assert isinstance(artifact, UUID)  # a coroutine only in async code
            return artifact
        except Exception as error:  # a server that does not answer now must not fail the job
            logger().warning("the link to the Ray dashboard cannot be shown: %s", redact_text(str(error)))
            return None

    def _live_job(self, client: "JobSubmissionClient", prefix: str) -> str | None:
        if self._local:
            return None
        live = [job.submission_id or "" for job in client.list_jobs() if not job.status.is_terminal()]
        return next((name for name in live if name.startswith(prefix)), None)

    def _follow(self, client: "JobSubmissionClient", job: str, stage: str, *, deadline_s: float) -> None:
        deadline = time.monotonic() + deadline_s + 30  # the job enforces its own deadline; this one is for a stuck job
        follower = Follower(stage)
        begun = answered = time.monotonic()
        while True:
            try:
                status = client.get_job_status(job)
                if self._local:
                    follower.read_file(self._log(job), ended=status.is_terminal())
                else:
                    follower.read(client.get_job_logs(job), ended=status.is_terminal())
            except (OSError, RuntimeError) as error:
                if (self._child and not self._child.running) or time.monotonic() - answered > _SILENCE_S:
                    raise JobFailed(f"Ray stopped responding while job {job} was running: {error}") from error
                time.sleep(_POLL_S)
                continue
            answered = time.monotonic()
            if status.is_terminal():
                break
            if time.monotonic() > deadline:  # `run` then stops the job if it has started it
                raise DeadlineExceeded(f"{job}: not done within {deadline_s:.0f} s; increase --deadline MINUTES")
            self._wait(job, follower, (time.monotonic() - begun) * _POLL_SHARE)
        if status != "SUCCEEDED":
            reason = ""
            with contextlib.suppress(OSError, RuntimeError):
                reason = f": {client.get_job_info(job).message}"
            raise follower.error(f"job {job} ended {status}{reason}")

    def _wait(self, job: str, follower: Follower, seconds: float) -> None:
        """Wait about `seconds`; for a local job, follow its log meanwhile and return early once its work is over."""
        if not self._local:
            time.sleep(min(_LONGEST_POLL_S, max(_POLL_S, seconds)))
            return
        until = time.monotonic() + min(_LONGEST_LOCAL_POLL_S, seconds)
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


def _remove_link(artifact: UUID) -> None:
    """Remove the link to the dashboard of a local Ray, which ends with the run; a server may not answer now."""
    from prefect.client.orchestration import get_client

    with contextlib.suppress(Exception), get_client(sync_client=True) as client:
        client.delete_artifact(artifact)
