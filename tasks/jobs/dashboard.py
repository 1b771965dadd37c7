"""Settings of a local Ray: its dashboard, off unless the environment variable PIPELINE_DASHBOARD is `on`."""

import os
from collections.abc import Mapping
from typing import Any

NAME = "PIPELINE_DASHBOARD"
"""Read by flow, Ray and jobs: a local Ray and its jobs inherit their flow's environment."""
TRAIN_STATE = {"RAY_TRAIN_ENABLE_STATE_TRACKING": "1"}
"""Environment that makes training jobs report their state to Ray's dashboard."""


def is_on(env: Mapping[str, str] = os.environ) -> bool:
    """Return whether `env` asks for the dashboard; raise `ValueError` for a value other than `on` and `off`."""
    value = env.get(NAME) or "off"
    if value not in ("on", "off"):
        raise ValueError(f"{NAME} must be on or off, got {value!r}; unset it to run without Ray's dashboard")
    return value == "on"


def shows_training() -> bool:
    """Return True if this process reports its training to Ray's dashboard."""
    return all(os.environ.get(name) == value for name, value in TRAIN_STATE.items())


def choose(*, on: bool) -> None:
    """Switch the dashboard on for this process and its children; leave the variable as it is if not `on`."""
    if on:
        os.environ[NAME] = "on"


def without_client_server(parameters: Any, _: bool) -> None:
    """Start no server for `ray://` addresses, which cannot start from a folder with spaces: a hook of `ray start`."""
    parameters.ray_client_server_port = None
