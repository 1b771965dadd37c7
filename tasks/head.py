"""The head node of a Ray on this machine: how it is started, with what settings, and when it is up."""

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

from tasks.capacity import SPARE_CPUS, authorization
from tasks.child import Child
from tasks.follow import JobFailed
from tasks.jobs import dashboard

_START_LIMIT_S = 120
_POLL_S = 0.25
_OBJECT_STORE_BYTES_A_CPU, _OBJECT_STORE_BYTES = 2**28, 2**30
"""What Ray Data may have in memory before it goes to the disk: more cores have more in work, up to the second."""
_RARELY = {
    "LOG_NAME_UPDATE_INTERVAL_S": "1",
    "RAY_LOG_MONITOR_MANY_FILES_THRESHOLD": "0",  # else it lists all log files ten times a second
}
"""How often Ray looks at itself. Where all cores compute, whatever wakes up holds all of a step's threads back."""
_SHOWN_RARELY = {
    "REPORTER_UPDATE_INTERVAL_MS": "10000",
    "METRICS_RECORD_INTERVAL_S": "60",
    "RAY_metrics_report_interval_ms": "60000",
    "RAY_task_events_report_interval_ms": "10000",
}
"""The same for what a full dashboard shows: nodes, processes, tasks, and figures for Prometheus."""
_FULL = {"RAY_DASHBOARD_ENABLE_PROFILING": "1", **dashboard.TRAIN_STATE}
"""What a full dashboard has beside its pages: its token is as good as the right to run any program."""


def start_ray(env: Mapping[str, str], *options: str, prefix: Sequence[str] = ()) -> tuple[Child, str, str]:
    """A head node on this machine that ends with this process, the address of its Jobs API, and its private folder.

    Its dashboard listens on loopback. Its other ports cannot: `env` must have `RAY_AUTH_MODE=token` and a token.

    It is not awaited. More `options` of `ray start` overrule the usual ones; `prefix` is what the command begins with.
    """
    # Ray puts sockets below this folder, whose names must stay below 107 bytes: hence not below the storage root.
    folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")
    port = _free_port()
    address = f"http://127.0.0.1:{port}"
    more = {
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_gcs_rpc_server_reconnect_timeout_s": "5",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Else helpers of Ray Train look for "the" Ray of this machine, and fail when there are two.
        "RAY_API_SERVER_ADDRESS": address,
        "TMPDIR": folder,
    }
    command = [sys.executable, str(Path(__file__).with_name("start_head.py")), "start", "--head", "--block", "--port=0"]
    # Ray lets everybody write in the folder that it is given: that one lies in one which is ours alone.
    command += [f"--temp-dir={folder}/ray", "--dashboard-host=127.0.0.1", f"--dashboard-port={port}"]
    command += ["--dashboard-agent-listen-port=0", f"--num-cpus={(os.cpu_count() or 1) + SPARE_CPUS}"]
    held = min(_OBJECT_STORE_BYTES, (os.cpu_count() or 1) * _OBJECT_STORE_BYTES_A_CPU)
    command += [f"--object-store-memory={held}", "--disable-usage-stats"]
    shown = _SHOWN_RARELY
    if dashboard.kind(env) == dashboard.FULL:
        shown = _FULL
        more["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), env.get("PATH", os.defpath)])  # py-spy
    given = {**_RARELY, **shown, **env, **more}
    return Child([*prefix, *command, *options], env=given, remove=folder), address, folder


def await_ray(child: Child, address: str) -> None:
    """Return once the Jobs API of `start_ray` answers; raises `JobFailed` with what Ray wrote when it does not."""
    deadline = time.monotonic() + _START_LIMIT_S
    request = urllib.request.Request(f"{address}/api/version", headers=authorization())
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy needs to see the token
    while child.running and time.monotonic() < deadline:
        # What answers there may be somebody else's, who took the port first: Ray then takes another and says so.
        with contextlib.suppress(OSError, ValueError), directly.open(request, timeout=5) as answer:
            if "ray_version" in json.load(answer):
                return
        time.sleep(_POLL_S)
    raise JobFailed(f"the local Ray did not start; it wrote:\n{child.output()[-2000:]}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
