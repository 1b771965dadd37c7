"""Replacement of `ray start` that starts fewer parts, and faster: `python start_ray.py start --head ...`.

The pipeline runs it as a child process and never imports it.
"""

import os
import sys
from pathlib import Path
from typing import Any

_HOOK = "RAY_START_HOOK"
"""Environment variable with the function that `ray start` calls with the parameters of the node to start."""
_MODULES = ("JobHead", "NodeHead", "ReportHead", "StateHead", "UsageStatsHead")
"""Modules of a trimmed dashboard: jobs, nodes, actors and logs. Every other module is a process of its own that is
checked every second: for Ray Serve, Prometheus, events, Ray Data and Ray Train."""


def prepare(parameters: Any, _: bool) -> None:
    """Switch off what `ray start` has no option for: the server for `ray://` addresses and parts of the dashboard."""
    from ray._private import ray_constants, services

    from tasks.jobs import dashboard

    del os.environ[_HOOK]
    parameters.ray_client_server_port = None
    if dashboard.kind() == dashboard.FULL:
        return
    start = services.start_ray_process

    def started(command: list[str], process_type: str, *given: Any, **options: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_DASHBOARD:
            command = [*command, f"--modules-to-load={','.join(_MODULES)}"]
        return start(command, process_type, *given, **options)

    services.start_ray_process = started


if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[4])  # else this folder's modules would be top-level ones
    from tasks.learning.memory import gc_paused

    with gc_paused():
        from ray.scripts.scripts import main

    os.environ[_HOOK] = "__main__.prepare"
    main()
