"""Replacement of `ray start` that starts fewer processes: `python start_ray.py start --head ...`.

The pipeline runs it as a child process and never imports it.
"""

import gc
import os
import sys
from typing import Any

_HOOK = "RAY_START_HOOK"
"""Environment variable with the function that `ray start` calls with the parameters of the node to start."""
_MODULES = ("JobHead", "NodeHead", "ReportHead", "StateHead", "UsageStatsHead")
"""Modules of the dashboard for jobs, nodes, actors and logs. Most of the others run as processes of their own."""


def prepare(parameters: Any, _: bool) -> None:
    """Switch off what `ray start` has no option for: the server for `ray://` addresses, modules of the dashboard."""
    from ray._private import ray_constants, services

    del os.environ[_HOOK]
    parameters.ray_client_server_port = None
    if os.environ.get("PIPELINE_DASHBOARD") == "full":  # as in `tasks.jobs.dashboard`, which cannot be imported here
        return
    start = services.start_ray_process

    def started(command: list[str], process_type: str, *given: Any, **options: Any) -> Any:
        if process_type == ray_constants.PROCESS_TYPE_DASHBOARD:
            command = [*command, f"--modules-to-load={','.join(_MODULES)}"]
        return start(command, process_type, *given, **options)

    services.start_ray_process = started


if __name__ == "__main__":
    del sys.path[0]  # else this folder's modules would be top-level ones
    gc.disable()  # as in `storage.process.gc_paused`
    from ray.scripts.scripts import main

    gc.enable()
    os.environ[_HOOK] = "__main__.prepare"
    main()
