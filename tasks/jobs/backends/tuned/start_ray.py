"""Replacement of `ray start` without the server for `ray://` addresses: `python start_ray.py start --head ...`.

The pipeline runs it as a child process and never imports it.
"""

import gc
import os
import sys
from typing import Any

_HOOK = "RAY_START_HOOK"
"""Environment variable with the function that `ray start` calls with the parameters of the node to start."""


def prepare(parameters: Any, _: bool) -> None:
    """Switch off the server for `ray://` addresses; `ray start` has no option for it."""
    del os.environ[_HOOK]
    parameters.ray_client_server_port = None


if __name__ == "__main__":
    del sys.path[0]  # else this folder's modules would be top-level ones
    gc.disable()  # as in `storage.process.gc_paused`
    from ray.scripts.scripts import main

    gc.enable()
    os.environ[_HOOK] = "__main__.prepare"
    main()
