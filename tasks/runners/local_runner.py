"""Runner on a local Ray that belongs to the run: starts Ray, and each stage's job as a child process beside it."""

import contextlib
import dataclasses
import os
import secrets
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from storage.process import reach_loopback_directly
from tasks.jobs import dashboard
from tasks.jobs.deadline import DeadlineExceeded
from tasks.jobs.errors import JobFailed
from tasks.jobs.spec import JobSpec
from tasks.orchestration.stage import logger
from tasks.resources import machine
from tasks.resources.capacity import SPARE_CPUS
from tasks.runners import jobs_api
from tasks.runners.child import Child
from tasks.runners.job_log import Follower
from tasks.runners.runner import expecting_result

_POLL_S = 0.1
_KILLED = 128 + signal.SIGKILL
_ENV = {
    # Nobody preempts this machine, and the watcher's processes cost each job a second of a core.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",  # in jobs, too: else Ray Data starts an actor that collects its usage
    # No other machine may join: the node's address becomes 127.0.0.1, and Ray listens on that alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_START_HOOK": "tasks.jobs.dashboard.without_client_server",
}
"""Additional environment of a local Ray and its jobs."""
_START_LIMIT_S = 120
_OBJECT_STORE_BYTES_A_CPU, _OBJECT_STORE_BYTES = 2**28, 2**30
"""Size of the object store, in bytes: per CPU, since more cores hold more data at once, and at most. Ray Data spills
to disk beyond it."""
_RAY_ENV = {
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",  # else Ray lists all log files ten times a second
}


@dataclasses.dataclass(frozen=True)
class LocalRay:
    """A head node that ends with this process."""

    child: Child
    address: str
    """Host and port for drivers, as in `ray.init`."""
    dashboard: str
    """URL of the dashboard and the Jobs API; empty if there is none."""
    folder: str
    """Folder that only this user can enter; deleted with the node."""

    def wait(self) -> None:
        """Return once drivers can connect; else raise `JobFailed` with Ray's output."""
        host, _, port = self.address.rpartition(":")
        deadline = time.monotonic() + _START_LIMIT_S
        while self.child.running and time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=5):
                return
            time.sleep(_POLL_S)
        raise JobFailed(f"the local Ray did not start; run again. Its output:\n{self.child.output()[-2000:]}")


def start_ray(
    env: Mapping[str, str], *options: str, port: int | None = None, prefix: Sequence[str] = (), has_dashboard: bool
) -> LocalRay:
    """Start a head node; return at once: see `LocalRay.wait`.

    `env` must have `RAY_AUTH_MODE=token` and a token, since only the dashboard always listens on loopback alone.
    `options` of `ray start` override the usual ones; `prefix` precedes the command.
    """
    # Ray puts sockets below this folder; their paths must stay below 107 bytes, so the storage root may be too long.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    port = port or _free_port()
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "start", "--head", "--block", f"--port={port}"]
    # Ray makes the folder that it is given writable for all users, so it lies inside one that only this user can enter.
    command += [f"--temp-dir={folder}/ray", f"--ray-client-server-port={_free_port()}", "--disable-usage-stats"]
    command += ["--dashboard-agent-listen-port=0", f"--num-cpus={machine.cores() + SPARE_CPUS}"]
    if machine.gpus({}):  # Ray counts these by NVML, which a container may lack; other makers' it counts otherwise
        command += [f"--num-gpus={len(machine.gpus(env))}"]
    held = min(_OBJECT_STORE_BYTES, machine.cores() * _OBJECT_STORE_BYTES_A_CPU)
    command += [f"--object-store-memory={held}", f"--include-dashboard={str(has_dashboard).lower()}"]
    more, url = {**_RAY_ENV, "TMPDIR": folder}, ""
    if has_dashboard:
        shown = _free_port()
        url = f"http://127.0.0.1:{shown}"
        command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={shown}"]
        more |= {
            # Shows stacks of processes; the dashboard's token already allows running any program.
            "RAY_DASHBOARD_ENABLE_PROFILING": "1",
            # Else helpers of Ray Train search for the only Ray of this machine, and fail if there are two.
            "RAY_API_SERVER_ADDRESS": url,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)]),  # py-spy
        }
    child = Child([*prefix, *command, *options], env={**env, **more}, remove=folder)
    return LocalRay(child, f"127.0.0.1:{port}", url, folder)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LocalRunner:
    """The local Ray of one run, and its jobs."""

    def __init__(self, *, wanted: bool) -> None:
        self._ray: LocalRay | None = None
        if wanted:
            self._ray = self._start()

    def run(self, spec: JobSpec[Any]) -> None:
        """Run a job, as `Runner` says; end it if the run is interrupted."""
        place = spec.model_copy(update={"threads": machine.cores()}).write()
        ray = self.connect()
        env = environment() | {"RAY_ADDRESS": ray.address}
        with expecting_result(spec.stage):
            job = Child([sys.executable, "-m", "tasks.jobs", spec.stage.kind.stage, place], env=env, cwd=jobs_api.CODE)
            try:
                self._follow(ray, job, deadline_s=spec.limits.stage_s)
            finally:
                job.end()

    def connect(self) -> LocalRay:
        """Return the local Ray once it answers; start another if it has died."""
        if self._ray is not None and not self._ray.child.running:
            logger().warning("the local Ray has stopped; starting another")
            self.end()
        self._ray = self._ray or self._start()
        self._ray.wait()
        if self._ray.dashboard:
            token = Path(self._ray.folder, "token")
            logger().info("Ray dashboard (during this run): %s. The token is in %s", self._ray.dashboard, token)
        return self._ray

    def end(self) -> None:
        if self._ray is not None:
            self._ray.child.end()
            self._ray = None

    def _start(self) -> LocalRay:
        os.environ["RAY_AUTH_MODE"] = "token"
        os.environ["RAY_AUTH_TOKEN"] = os.environ.get("RAY_AUTH_TOKEN") or secrets.token_hex(32)
        reach_loopback_directly()
        has_dashboard = dashboard.is_on()
        # No node is ever added; only the dashboard shows what the autoscaler's monitor knows.
        ray = start_ray(environment(), *([] if has_dashboard else ["--no-monitor"]), has_dashboard=has_dashboard)
        if ray.dashboard:
            token = Path(ray.folder, "token")
            token.touch(mode=0o600)
            token.write_text(os.environ["RAY_AUTH_TOKEN"] + "\n")
        return ray

    def _follow(self, ray: LocalRay, job: Child, *, deadline_s: float) -> None:
        """Pass on the job's output until the job ends; raise its error if it failed."""
        follower = Follower()
        deadline = time.monotonic() + deadline_s + 30  # the job enforces its own deadline; this one is for a stuck job
        while job.running:
            if not ray.child.running:
                raise JobFailed(f"the local Ray ended while the job was running: {ray.child.output()[-500:]}")
            if time.monotonic() > deadline:
                raise DeadlineExceeded(f"not done within {deadline_s:.0f} s; use a longer --stage-timeout")
            time.sleep(_POLL_S)
            follower.feed(job.new_output())
        follower.feed(job.new_output(), ended=True)
        if job.exit_code:
            reason = "was killed; the kernel does that when memory runs out" if job.exit_code == _KILLED else "failed"
            raise follower.error(f"the job {reason} (exit code {job.exit_code})")


def environment() -> dict[str, str]:
    """Return the environment of a local Ray, and of the drivers that connect to it."""
    path = os.pathsep.join(filter(None, [str(jobs_api.CODE), os.environ.get("PYTHONPATH")]))
    return os.environ | jobs_api.JOB_ENV | _ENV | {"PYTHONPATH": path}
