"""Ray's dashboard on a local Ray: how much of it there is, as the variable PIPELINE_DASHBOARD says."""

import os
from collections.abc import Mapping

NAME = "PIPELINE_DASHBOARD"
"""Flow, Ray and jobs read it: a local Ray, and what runs on it, has the environment of its flow."""
TRIMMED, FULL = "trimmed", "full"
KINDS = (TRIMMED, FULL)
TRAIN_STATE = {"RAY_TRAIN_ENABLE_STATE_TRACKING": "1"}
"""Environment of training jobs that makes them report their state to Ray's dashboard."""


def kind(env: Mapping[str, str] = os.environ) -> str:
    """Return how much of the dashboard `env` asks for.

    Raises:
        ValueError: It is neither `trimmed` nor `full`.
    """
    found = env.get(NAME) or TRIMMED
    if found not in KINDS:
        raise ValueError(f"{NAME} must be trimmed or full, got {found!r}; unset it for a trimmed dashboard")
    return found


def shows_training() -> bool:
    """Return whether this process reports its training to Ray's dashboard."""
    return all(os.environ.get(name) == value for name, value in TRAIN_STATE.items())


def choose(asked: str | None) -> None:
    """Set for this process and its children what a command line asks for; None leaves the variable as it is."""
    if asked is not None:
        os.environ[NAME] = asked
