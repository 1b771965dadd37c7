"""Head node of a local Ray: its command and settings, and the wait until it answers."""

import dataclasses
import os
import socket
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.resources import machine
from tasks.resources.capacity import SPARE_CPUS
from tasks.runners.child import Child
from tasks.runners.job_log import JobFailed

_START_LIMIT_S = 120
_POLL_S = 0.1
_OBJECT_STORE_BYTES_A_CPU, _OBJECT_STORE_BYTES = 2**28, 2**30
"""Size of the object store, in bytes: per CPU, since more cores hold more data at once, and at most. Ray Data spills
to disk beyond it."""
_ENV = {
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",  # else Ray lists all log files ten times a second
}
_DASHBOARD_ENV = {"RAY_DASHBOARD_ENABLE_PROFILING": "1"}
"""Shows stacks of processes; the dashboard's token already allows running any program."""


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
        deadline = time.monotonic() + _START_LIMIT_S
        while self.child.running and time.monotonic() < deadline:
            if _is_open(self.address):
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
    command += ["--dashboard-agent-listen-port=0", f"--num-cpus={machine.cores(env) + SPARE_CPUS}"]
    if machine.gpus({}):  # Ray counts these by NVML, which a container may lack; other makers' it counts otherwise
        command += [f"--num-gpus={len(machine.gpus(env))}"]
    held = min(_OBJECT_STORE_BYTES, machine.cores(env) * _OBJECT_STORE_BYTES_A_CPU)
    command += [f"--object-store-memory={held}", f"--include-dashboard={str(has_dashboard).lower()}"]
    more, url = {**_ENV, "TMPDIR": folder}, ""
    if has_dashboard:
        shown = _free_port()
        url = f"http://127.0.0.1:{shown}"
        command += ["--dashboard-host=127.0.0.1", f"--dashboard-port={shown}"]
        more |= _DASHBOARD_ENV | {
            # Else helpers of Ray Train search for the only Ray of this machine, and fail if there are two.
            "RAY_API_SERVER_ADDRESS": url,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)]),  # py-spy
        }
    child = Child([*prefix, *command, *options], env={**env, **more}, remove=folder)
    return LocalRay(child, f"127.0.0.1:{port}", url, folder)


def _is_open(place: str) -> bool:
    host, _, port = place.rpartition(":")
    try:
        with socket.create_connection((host, int(port)), timeout=5):
            return True
    except OSError:
        return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
