"""Progress of a stage as a Prefect artifact, shown in the UI."""

import logging
import time
from typing import Any

_EVERY_S = 10.0
"""Seconds between updates; each keeps Prefect's server and this process busy for about 30 ms."""


class ProgressArtifact:
    """Progress bar on the page of the flow run; its errors never fail the stage."""

    def __init__(self, stage: str) -> None:
        self._key = f"{stage}-progress"
        self._artifact: Any = None
        self._updated = float("-inf")

    def update(self, fraction: float, text: str) -> None:
        """Show `fraction` (0 to 1) and `text` at most every 10 s, and always at 1; do nothing outside a flow run."""
        from prefect.artifacts import create_progress_artifact, update_progress_artifact
        from prefect.context import FlowRunContext

        due = fraction >= 1 or time.monotonic() - self._updated > _EVERY_S
        if not due or FlowRunContext.get() is None:
            return
        self._updated = time.monotonic()
        percent = 100 * min(fraction, 1.0)
        try:
            if self._artifact is None:
                self._artifact = create_progress_artifact(percent, key=self._key, description=text)
            else:
                update_progress_artifact(self._artifact, percent, description=text)
        except Exception as error:  # an unreachable server must not fail a training
            logging.getLogger("pipeline").debug("progress cannot be shown: %s", error)
