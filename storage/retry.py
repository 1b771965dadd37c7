"""Retries of all requests to a storage; `storage.error_policy` says which errors are retried."""

from collections.abc import Callable
from typing import TypeVar

from storage.error_policy import is_transient_on_s3
from storage.uri import redact_text

T = TypeVar("T")

PATIENCE_S = 120.0
"""Seconds during which a request is retried: most outages of an object store are shorter."""
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 15.0


def with_retries(request: Callable[[], T]) -> T:
    """Call `request`, retrying transient errors for `PATIENCE_S` with growing, random pauses; return its result.

    It is retried at least once, even if the first try used up the time by stalling until its time-out.

    Raises `ConnectionError` with the last error and the next step when the time is up. Errors that a retry would only
    repeat, such as no access, no such file or a wrong checksum, are raised at once.
    """
    from tenacity import (
        Retrying,
        retry_if_exception,
        stop_after_attempt,
        stop_after_delay,
        wait_random_exponential,
    )

    pauses = wait_random_exponential(multiplier=_FIRST_PAUSE_S, max=_LONGEST_PAUSE_S)
    stop = stop_after_delay(PATIENCE_S) & stop_after_attempt(2)
    retrying = Retrying(stop=stop, wait=pauses, retry=retry_if_exception(is_transient_on_s3), reraise=True)
    try:
        return retrying(request)
    except Exception as error:
        if not is_transient_on_s3(error):
            raise
        said = redact_text(" ".join(str(error).split()))
        raise ConnectionError(
            f"the storage kept failing for {PATIENCE_S:.0f} s, last error: {said}; check the server at "
            "AWS_ENDPOINT_URL, then run the same command again"
        ) from error
