"""`ray start` for a Ray of our own, which starts less and sooner: `python start_head.py start --head ...`.

Never imported by the pipeline, and runs where that is not installed.
"""

import gc
import os
import sys
from typing import Any

_HOOK = "RAY_START_HOOK"
"""Names what `ray start` calls with the parameters of the node that it is about to start."""


def without_client_server(parameters: Any, _: bool) -> None:
    """No server for `ray://` addresses, which nobody here uses: `ray start` has no option to that end."""
    parameters.ray_client_server_port = None
    del os.environ[_HOOK]


if __name__ == "__main__":
    del sys.path[0]  # this folder, whose modules are not top-level ones
    gc.disable()  # as in tasks.learning.imports
    from ray.scripts.scripts import main

    gc.freeze()
    gc.enable()
    os.environ[_HOOK] = "__main__.without_client_server"
    main()
