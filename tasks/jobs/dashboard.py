"""Ray's dashboard: a local Ray has one, and trainings report to it, if Ray's own variable for that is set."""

import os
from typing import Any

NAME = "RAY_TRAIN_ENABLE_STATE_TRACKING"
"""Ray's variable, read by flow, Ray and jobs, which inherit their flow's environment; set by `--dashboard`."""


def is_on() -> bool:
    """Return True if this process reports its training to Ray's dashboard."""
    return os.environ.get(NAME) == "1"


def without_client_server(parameters: Any, _: bool) -> None:
    """Start no server for `ray://` addresses, which cannot start from a folder with spaces: a hook of `ray start`."""
    parameters.ray_client_server_port = None
