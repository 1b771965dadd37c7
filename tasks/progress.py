"""How far a stage is, as a progress artifact that Prefect's pages show."""

import logging
import time
from typing import Any

_EVERY_S = 10.0
"""Each update keeps Prefect's server and this process busy for some 30 ms, beside what it tells of."""


class ProgressArtifact:
    """A bar on the page of the running flow; it never fails the work that it tells of."""

    def __init__(self, stage: str) -> None:
        self._key = f"{stage}-progress"
        self._artifact: Any = None
        self._updated = float("-inf")

    def update(self, fraction: float, text: str) -> None:
        """Show `fraction` (0 to 1) and `text`; at most every ten seconds, the end always; nothing outside a run."""
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
        except Exception as error:  # a server that does not answer now is no reason to end a training
            logging.getLogger("pipeline").debug("progress is not shown: %s", error)
