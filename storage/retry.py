"""Retries: one policy for all requests to a storage."""

from collections.abc import Callable
from typing import TypeVar

from storage.uri import redact

T = TypeVar("T")

PATIENCE_S = 120.0
"""Seconds during which a request is retried: most outages of an object store are shorter."""
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 15.0

_STATUS = (500, 502, 503, 504)
_CODES = ("ConditionalRequestConflict", "RequestTimeout", "SlowDown")
"""Error codes that S3 sends when it asks for a retry, although their HTTP status means an invalid request."""


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
    retrying = Retrying(stop=stop, wait=pauses, retry=retry_if_exception(is_transient), reraise=True)
    try:
        return retrying(request)
    except Exception as error:
        if not is_transient(error):
            raise
        said = redact(" ".join(str(error).split()))
        raise ConnectionError(
            f"the storage kept failing for {PATIENCE_S:.0f} s, last with: {said}; check the server at "
            "AWS_ENDPOINT_URL, then run the same command again"
        ) from error


def is_transient(error: BaseException | None) -> bool:
    """Return whether `error` or its cause is transient: HTTP 500, 502, 503, 504, a broken connection, a time-out."""
    import aiohttp
    from botocore import exceptions, parsers

    unanswered = (exceptions.ConnectionError, exceptions.HTTPClientError)
    broken_off = (exceptions.IncompleteReadError, exceptions.ResponseStreamingError, parsers.ResponseParserError)
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status in _STATUS or response.get("Error", {}).get("Code") in _CODES
        if isinstance(error, exceptions.SSLError):
            return False
        if isinstance(error, (*unanswered, *broken_off, aiohttp.ClientError, TimeoutError, ConnectionError)):
            return True
        error = error.__cause__
    return False
