"""`ray start` for a Ray of our own, which starts less and sooner: `python start_head.py start --head ...`.

Never imported by the pipeline.
"""

import os
import sys
from pathlib import Path
from typing import Any

_HOOK = "RAY_START_HOOK"
"""Names what `ray start` calls with the parameters of the node that it is about to start."""
_MODULES = ("JobHead", "NodeHead", "ReportHead", "StateHead", "UsageStatsHead")
"""What a trimmed dashboard has: jobs, nodes, actors and logs. Each of the others is a process, asked
every second how it is: for Ray Serve, Prometheus, events, Ray Data and Ray Train."""


def prepare(parameters: Any, _: bool) -> None:
    """Leave out what `ray start` has no option for: a server for `ray://` addresses, and parts of the dashboard."""
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
    sys.path[0] = str(Path(__file__).resolve().parent.parent)  # this folder's modules are not top-level ones
    from tasks.learning.imports import quickly

    with quickly():
        from ray.scripts.scripts import main

    os.environ[_HOOK] = "__main__.prepare"
    main()
