"""Head of a Ray cluster, which may be away for minutes: requests wait until it answers."""

import datetime
import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from storage.uri import redact, redact_text
from tasks.jobs.deadline import DeadlineExceeded
from tasks.orchestration.stage import logger
from tasks.runners import jobs_api
from tasks.runners.job_log import JobFailed, JobRefused

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

_POLL_S = 2.0
_TELL_EVERY_S = 60.0
_Answer = TypeVar("_Answer")


class RayHead:
    """Jobs API at `address`; `has_answered`: the address is known to be right."""

    def __init__(self, address: str, *, has_answered: bool) -> None:
        self._address, self._has_answered = address, has_answered
        self._client: JobSubmissionClient | None = None

    def ask(self, question: "Callable[[JobSubmissionClient], _Answer]", *, until: float) -> _Answer:
        """Return the answer; while the head is away, log that and ask again, until the monotonic clock is at `until`.

        Raises:
            JobRefused: The very first question has no answer, so the address or the token is wrong.
            JobFailed: The answer is an error.
            DeadlineExceeded: The head is still away.
        """
        silent_since = told_at = None
        while True:
            try:
                answer = question(self.client())
            except OSError as error:
                now = time.monotonic()
                silent_since = silent_since or now
                if told_at is None or now - told_at >= _TELL_EVERY_S:
                    told_at = now
                    self._tell(now - silent_since, until, error)
                if time.monotonic() > until:
                    raise DeadlineExceeded(
                        f"Ray's head at {redact(self._address)} has not come back before the deadline; run again once "
                        "it answers, or use a longer --stage-timeout"
                    ) from error
                time.sleep(_POLL_S)
            except JobFailed:
                raise
            except RuntimeError as error:
                raise JobFailed(f"Ray's head at {redact(self._address)}: {redact_text(str(error))}") from error
            else:
                if silent_since:
                    logger().info("Ray's head answers again")
                return answer

    def client(self) -> "JobSubmissionClient":
        """Return the client of the Jobs API; raise `OSError` if that has answered before and does not now."""
        if self._client is None:
            self._client = self._connected()
            self._has_answered = True
            if os.environ.get("RAY_AUTH_MODE") != "token":
                logger().warning(
                    "this Ray requires no token: anybody who can reach its ports can run code on it (SECURITY.md)"
                )
            logger().info("Ray dashboard (during this run): %s", redact(self._address))
        return self._client

    def _connected(self) -> "JobSubmissionClient":
        try:
            return jobs_api.connect(self._address)
        except Exception as error:
            if self._has_answered and isinstance(error, OSError):
                raise
            raise JobRefused(
                f"RAY_ADDRESS={redact(self._address)}: no Ray Jobs API answers there: {redact_text(str(error))}; check "
                "the address, RAY_AUTH_MODE and RAY_AUTH_TOKEN"
            ) from error

    def _tell(self, silent_s: float, until: float, error: OSError) -> None:
        at = datetime.datetime.now() + datetime.timedelta(seconds=max(0.0, until - time.monotonic()))
        since = f"has not answered for {silent_s / 60:.0f} min" if silent_s >= _TELL_EVERY_S else "does not answer"
        text = "Ray's head at %s %s; waiting until %s (%s)"
        logger().warning(text, redact(self._address), since, f"{at:%d %b %H:%M}", redact_text(str(error)))
