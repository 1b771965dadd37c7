"""How faults of a storage are tried again: one policy for everything that touches it."""

from collections.abc import Callable
from typing import TypeVar

from storage.uri import masked

T = TypeVar("T")

PATIENCE_S = 120.0
"""For how long a request is tried again: most outages of an object store are over by then."""
_FIRST_PAUSE_S = 0.25
_LONGEST_PAUSE_S = 15.0

_STATUS = (500, 502, 503, 504)
_CODES = ("ConditionalRequestConflict", "RequestTimeout", "SlowDown")
"""What S3 says when trying again is all that it asks for, with statuses that else stand for a wrong request."""


def patiently(request: Callable[[], T]) -> T:
    """What `request` returns, tried again for `PATIENCE_S` with growing, random pauses while its faults are transient.

    At least once again, however long the first try took: one that stalls until its time-out is no reason to give up.

    Raises `ConnectionError` with its last error and what to do in the end; the error itself, at once, where another
    try would meet it again: no access, nothing there, a wrong checksum.
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
        said = masked(" ".join(str(error).split()))
        raise ConnectionError(
            f"the storage kept failing for {PATIENCE_S:.0f} s, last with: {said}; "
            "see whether the server that AWS_ENDPOINT_URL names is well, then give the same command again"
        ) from error


def is_transient(error: BaseException | None) -> bool:
    """Whether `error`, or what caused it, passes by itself: 500, 502, 503, 504, a broken connection, a time-out."""
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
