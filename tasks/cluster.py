"""The one place that starts or joins Ray, submits a Ray job and follows it."""

import contextlib
import hashlib
import os
import secrets
import shlex
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage import files, manifest
from storage.uri import URI, Root, masked
from tasks import jobs_api
from tasks.capacity import check_disk, check_workers
from tasks.child import Child
from tasks.follow import Follower, JobFailed, JobRefused
from tasks.head import await_ray, start_ray
from tasks.jobs import dashboard
from tasks.jobs.deadline import DeadlineExceeded
from tasks.jobs.scale import ANY, Needs, Workers
from tasks.jobs.spec import JOB_NAME, JobSpec
from tasks.learning import code
from tasks.preflight import check_nodes
from tasks.stage import logger, tidy

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

GRACE_S = 60
"""How much longer than its deadline a stage may take that runs a job: the job minds the deadline itself."""
_ROOT_DIGITS = 8
_POLL_S, _LONGEST_POLL_S, _POLL_SHARE = 0.25, 2.0, 0.02
"""How often Ray is asked about a job: the longer it runs, the more rarely, since each answer keeps half of Ray busy."""
_LONGEST_LOCAL_POLL_S = 10.0
"""The same for a local job, whose log is a file here: that says when its work is over, unless it is killed."""
_SILENCE_S = 60
"""After how long without an answer from Ray a job is taken for lost."""
_LOCAL_ENV = {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}
"""Nobody takes this machine away; every process that a job starts costs it a second of a core."""


def _may_help(task: Any, run: Any, state: Any) -> bool:
    """Whether trying a failed task again can end otherwise."""
    try:
        state.result()
    except JobRefused:
        return False
    except JobFailed:
        return True
    except BaseException:
        return False
    return False


retry_on_fault: dict[str, Any] = {
    "retries": 2,
    "retry_delay_seconds": [2, 10],
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": _may_help,
}
"""How a Prefect task that runs a Ray job is tried again: where a fresh job can help, and not where it cannot."""


class Cluster:
    """The Ray of one run: a local one that the run owns, or the cluster that RAY_ADDRESS names."""

    def __init__(self, *, wanted: bool) -> None:
        self._child: Child | None = None
        self._client: JobSubmissionClient | None = None
        self._address = os.environ.get("RAY_ADDRESS", "")
        self._local = not self._address
        self._logs = Path()
        self._how_to_log_in = ""
        if wanted and self._local:
            self._start()

    def run(self, stage: str, spec: JobSpec, *, target: URI, scratch: URI) -> None:
        """Run a job to its end, its log and progress going to the logger of the running task.

        A live job for the same `target` is followed instead of starting another. Raises `JobRefused` for an error that
        would come again and `JobFailed` for any other; when this is interrupted, a job of its own is stopped.
        """
        client = self.connect()
        # The fingerprint is the same on every storage root, and a cluster may be used for several.
        name = f"{stage}-{target.fingerprint}-{hashlib.sha256(spec.storage.encode()).hexdigest()[:_ROOT_DIGITS]}-"
        try:
            found = self._live_job(client, name)
        except (OSError, RuntimeError) as error:
            raise JobFailed(f"Ray does not say which jobs it has: {error}") from error
        job = found or self._submit(client, stage, name, spec, scratch)
        self._link(stage, job)
        try:
            self._follow(client, job, stage, deadline_s=spec.deadline_s)
            if not files.exists(target.child(manifest.NAME)):
                raise JobFailed(f"job {job} ended well, but {target} is not committed: do its nodes share the storage?")
        except JobFailed:
            # Of two runs at once on one URI the first to commit wins, and the other may trip over that: it has won too.
            if not files.exists(target.child(manifest.NAME)):
                raise
        except BaseException:
            if not found:
                with contextlib.suppress(Exception):
                    client.stop_job(job)
            raise
        tidy(scratch)

    def dismiss(self) -> None:
        """What `end` does, without waiting for it."""
        if self._child is not None:
            self._child.dismiss()

    def end(self) -> None:
        """End a local Ray and everything that runs on it; a cluster is left as it is."""
        if self._child is not None:
            self._child.end()
            self._child = self._client = None

    def _start(self) -> None:
        """Start a local Ray without waiting for it."""
        # Read when ray is imported, here for the client as in the child.
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)
        for name in ("NO_PROXY", "no_proxy"):  # Ray is on this machine, and no proxy needs to see the token
            os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))
        path = {"PYTHONPATH": os.pathsep.join(filter(None, [str(jobs_api.CODE), os.environ.get("PYTHONPATH")]))}
        env = os.environ | jobs_api.JOB_ENV | _LOCAL_ENV | path
        # The monitor is for clusters that grow; what it says of this one stands on the dashboard's first page.
        options = [] if dashboard.kind() == dashboard.FULL else ["--no-monitor"]
        self._child, self._address, folder = start_ray(env, *options)
        token = Path(folder, "token")
        token.touch(mode=0o600)
        token.write_text(os.environ["RAY_AUTH_TOKEN"] + "\n")
        self._logs = Path(folder, "ray", "session_latest", "logs")
        self._how_to_log_in = f"; it asks for the token in {token}"

    def connect(self) -> "JobSubmissionClient":
        """A client of the Jobs API, once it answers."""
        if self._child is not None and not self._child.running:
            logger().warning("the local Ray has ended: starting another")
            self.end()
        if self._client is not None:
            return self._client
        if self._local and self._child is None:
            self._start()
        if self._child is not None:
            import ray.job_submission  # noqa: F401 - takes a second, which Ray takes longer to start

            await_ray(self._child, self._address)
        try:
            self._client = jobs_api.connect(self._address)
        except Exception as error:
            where = f"RAY_ADDRESS={masked(self._address)}"
            raise JobRefused(f"{where}: no Ray Jobs API answers there: {masked(str(error))}") from error
        if os.environ.get("RAY_AUTH_MODE") != "token":
            logger().warning("this Ray asks for no token: whoever reaches its ports can run code there (SECURITY.md)")
        logger().info("Ray's dashboard, while this lasts: %s%s", masked(self._address), self._how_to_log_in)
        return self._client

    def _submit(self, client: "JobSubmissionClient", stage: str, prefix: str, spec: JobSpec, scratch: URI) -> str:
        threads = os.cpu_count() if self._local else None
        place = scratch.child(f"{stage}.json")
        files.replace(place, spec.model_copy(update={"threads": threads}).model_dump_json(indent=1).encode())
        python = sys.executable if self._local else "python"
        runtime_env = {} if self._local else jobs_api.what_goes_along()  # a local Ray has this process's own
        try:
            number = 1 + sum((job.submission_id or "").startswith(prefix) for job in client.list_jobs())
            name = f"{prefix}{number}"
            entrypoint = f"exec env {JOB_NAME}={name} {python} -m tasks.jobs.{stage} {shlex.quote(place)}"
            with code.packaged() as packages:
                if packages and not self._local:
                    runtime_env["py_modules"] += packages
                return str(client.submit_job(entrypoint=entrypoint, submission_id=name, runtime_env=runtime_env))
        except (OSError, RuntimeError) as error:
            raise JobFailed(f"Ray did not take the job: {error}") from error

    def _link(self, stage: str, job: str) -> None:
        """A link to the job's page in Ray's dashboard, among the artifacts of the running flow, if one runs."""
        from prefect.artifacts import create_link_artifact
        from prefect.runtime import flow_run

        if not flow_run.id:
            return
        link = f"{masked(self._address)}/#/jobs/{job}"
        about = f"Ray's dashboard for {stage}, while it lasts{self._how_to_log_in}"
        create_link_artifact(link, key="ray-dashboard", link_text=f"{stage} in Ray's dashboard", description=about)

    def _live_job(self, client: "JobSubmissionClient", prefix: str) -> str | None:
        if self._local:
            return None
        live = [job.submission_id for job in client.list_jobs() if not job.status.is_terminal()]
        return next((name for name in live if name and name.startswith(prefix)), None)

    def _follow(self, client: "JobSubmissionClient", job: str, stage: str, *, deadline_s: float) -> None:
        deadline = time.monotonic() + deadline_s + 30  # the job minds its own deadline: this is for one that is stuck
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
                    raise JobFailed(f"Ray does not answer any more while job {job} runs: {error}") from error
                time.sleep(_POLL_S)
                continue
            answered = time.monotonic()
            if status.is_terminal():
                break
            if time.monotonic() > deadline:  # whoever submitted it stops it
                raise DeadlineExceeded(
                    f"{job}: not done within {deadline_s:.0f} s; give it longer with --deadline MINUTES"
                )
            self._wait(job, follower, (time.monotonic() - begun) * _POLL_SHARE)
        if status != "SUCCEEDED":
            reason = ""
            with contextlib.suppress(OSError, RuntimeError):
                reason = f": {client.get_job_info(job).message}"
            raise follower.error(f"job {job} ended {status}{reason}")

    def _wait(self, job: str, follower: Follower, seconds: float) -> None:
        """Wait about as long, or until a local job's work is over; what that one writes meanwhile is followed."""
        if not self._local:
            time.sleep(min(_LONGEST_POLL_S, max(_POLL_S, seconds)))
            return
        until = time.monotonic() + min(_LONGEST_LOCAL_POLL_S, seconds)
        while True:
            time.sleep(_POLL_S)
            with contextlib.suppress(OSError):  # it is read again, and what is wrong told, when Ray is asked
                follower.read_file(self._log(job), ended=False)
            if follower.ended or time.monotonic() > until or not (self._child and self._child.running):
                return

    def _log(self, job: str) -> Path:
        """Where a local Ray keeps what a job writes."""
        return self._logs / f"job-driver-{job}.log"


_early: Cluster | None = None
"""Started for the session to come."""


@contextlib.contextmanager
def starting(*, wanted: bool) -> Iterator[None]:
    """The Ray of the first session inside the context, when it is `wanted`, is on its way already."""
    global _early
    cluster = Cluster(wanted=wanted)
    _early = cluster if wanted else None
    try:
        yield
    finally:
        _early = None
        cluster.end()


@contextlib.contextmanager
def session(root: Root, *, wanted: bool, workers: Workers, needs: Needs = ANY) -> Iterator[Cluster]:
    """The Ray of one run; started at once when `wanted`, else only if a job is submitted after all; 0 workers: none.

    Raises `ValueError` when it is wanted and can never give that many workers with what each `needs`, or has a node
    that cannot use `root`.
    """
    if workers == 0:
        from tasks.local import Local

        yield Local(wanted=False)
        return
    if wanted:
        check_workers(workers, needs)
        check_disk(root)
        check_nodes(root)
    global _early
    if wanted and _early is not None:
        early, _early = _early, None
        try:
            yield early
        finally:
            early.dismiss()  # the one who started it waits
        return
    cluster = Cluster(wanted=wanted)
    try:
        yield cluster
    finally:
        cluster.end()
