"""Choice of the local Ray's dashboard, trimmed or full, in the environment variable PIPELINE_DASHBOARD."""

import os
from collections.abc import Mapping

NAME = "PIPELINE_DASHBOARD"
"""Read by flow, Ray and jobs: a local Ray and its jobs inherit their flow's environment."""
TRIMMED, FULL = "trimmed", "full"
KINDS = (TRIMMED, FULL)
TRAIN_STATE = {"RAY_TRAIN_ENABLE_STATE_TRACKING": "1"}
"""Environment that makes training jobs report their state to Ray's dashboard."""


def kind(env: Mapping[str, str] = os.environ) -> str:
    """Return the kind of dashboard that `env` asks for; raise `ValueError` for an unknown one."""
    found = env.get(NAME) or TRIMMED
    if found not in KINDS:
        raise ValueError(f"{NAME} must be trimmed or full, got {found!r}; unset it to use the trimmed dashboard")
    return found


def shows_training() -> bool:
    """Return True if this process reports its training to Ray's dashboard."""
    return all(os.environ.get(name) == value for name, value in TRAIN_STATE.items())


def choose(asked: str | None) -> None:
    """Set the kind for this process and its children; None leaves the variable as it is."""
    if asked is not None:
        os.environ[NAME] = asked
