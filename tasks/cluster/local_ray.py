"""Head node of a local Ray: its command and settings, and the wait until it answers."""

import contextlib
import json
import os
import socket
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path

from tasks.cluster.child import Child
from tasks.cluster.job_log import JobFailed
from tasks.jobs import dashboard
from tasks.jobs.backends import tuned
from tasks.resources import machine
from tasks.resources.capacity import SPARE_CPUS, authorization

_START_LIMIT_S = 120
_POLL_S = 0.25
_OBJECT_STORE_BYTES_A_CPU, _OBJECT_STORE_BYTES = 2**28, 2**30
"""Size of the object store, in bytes: per CPU, since more cores hold more data at once, and at most. Ray Data spills
to disk beyond it."""
_RARELY = {
    "LOG_NAME_UPDATE_INTERVAL_S": "1",
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",  # else Ray lists all log files ten times a second
}
"""Longer intervals of Ray's self-monitoring: when all cores compute, each wake-up delays every thread of a step."""
_SHOWN_RARELY = {
    "REPORTER_UPDATE_INTERVAL_MS": "10000",
    "METRICS_RECORD_INTERVAL_S": "60",
    "RAY_metrics_report_interval_ms": "60000",
    "RAY_task_events_report_interval_ms": "10000",
}
"""Longer intervals for what only a full dashboard shows: nodes, processes, tasks and Prometheus metrics."""
_FULL = {"RAY_DASHBOARD_ENABLE_PROFILING": "1", **dashboard.TRAIN_STATE}
"""Extras of a full dashboard, such as profiling; its token already allows running any program."""


def start_ray(env: Mapping[str, str], *options: str, prefix: Sequence[str] = ()) -> tuple[Child, str, str]:
    """Start a head node that ends with this process; return it, its Jobs API's address and its private folder.

    Returns at once: see `await_ray`. The dashboard listens on loopback only. The other ports cannot, so `env` must have
    `RAY_AUTH_MODE=token` and a token. `options` of `ray start` override the usual ones; `prefix` precedes the command.
    """
    # Ray puts sockets below this folder; their paths must stay below 107 bytes, so the storage root may be too long.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    more = {
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Else helpers of Ray Train search for the only Ray of this machine, and fail if there are two.
        "RAY_API_SERVER_ADDRESS": address,
        "TMPDIR": folder,
    }
    program = ["-P", "-m", "ray.scripts.scripts"]
    if tuned.is_on(machine.cores(env), env):  # leaves out what a small machine does not need
        program = [str(Path(tuned.__file__).with_name("start_ray.py"))]
    command = [sys.executable, *program, "start", "--head", "--block", "--port=0"]
    # Ray makes the folder that it is given writable for all users, so it lies inside one that only this user can enter.
    command += [f"--temp-dir={folder}/ray", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}"]
    command += ["--dashboard-agent-listen-port=0", f"--num-cpus={machine.cores(env) + SPARE_CPUS}"]
    if machine.gpus({}):  # Ray counts these by NVML, which a container may lack; other makers' it counts otherwise
        command += [f"--num-gpus={len(machine.gpus(env))}"]
    held = min(_OBJECT_STORE_BYTES, machine.cores(env) * _OBJECT_STORE_BYTES_A_CPU)
    command += [f"--object-store-memory={held}", "--disable-usage-stats"]
    shown = _SHOWN_RARELY
    if dashboard.kind(env) == dashboard.FULL:
        shown = _FULL
        more["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])  # py-spy
    given = {**_RARELY, **shown, **env, **more}
    return Child([*prefix, *command, *options], env=given, remove=folder), address, folder


def await_ray(child: Child, address: str) -> None:
    """Return once the Jobs API of `start_ray` answers; else raise `JobFailed` with Ray's output."""
    deadline = time.monotonic() + _START_LIMIT_S
    request = urllib.request.Request(f"{address}/api/version", headers=authorization())
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never send the token to a proxy
    while child.running and time.monotonic() < deadline:
        # Another program may have taken the port first and answer here: Ray then takes another port and says so.
        with contextlib.suppress(OSError, ValueError), directly.open(request, timeout=5) as answer:
            if "ray_version" in json.load(answer):
                return
        time.sleep(_POLL_S)
    raise JobFailed(f"the local Ray did not start; run again. Its output:\n{child.output()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
