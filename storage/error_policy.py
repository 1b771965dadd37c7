"""The error policy: which errors are permanent, which are retried, and which mean that the storage fails.

- A transient error of a server or the network is retried at the request: `storage.s3`, `tasks.learning.downloading`.
- A permanent error ends the run: the Prefect task does not retry it, and the user has to change something first. Ray
  Train does not restart workers after it either, unless the restart may help (`tasks.jobs.train.worker`).
- Any other error ends the job and is retried by Ray Train and by the Prefect task (`tasks.runners.runner`).

What the user reads of them: `tasks.jobs.errors` for those of jobs, `storage.exits` for the commands.
"""

import errno
import re
import urllib.error
from http.client import HTTPException


class Permanent(Exception):
    """Base of this project's errors that a retry would meet again."""


class DiskFull(Permanent, OSError):
    """No space is left for a write; the existing files are unchanged."""


_PERMANENT = (Permanent, ValueError, TypeError, FileNotFoundError, PermissionError)
_NO_MEMORY = re.compile(r"can't allocate memory|(CUDA|Cuda) .*out of memory|CUBLAS_STATUS_ALLOC_FAILED", re.DOTALL)
"""Messages of torch on a CPU, CUDA, NCCL and cuBLAS."""

EXPIRED_CODES = ("ExpiredToken", "InvalidToken")
"""Error codes of temporary keys that have expired: the next try finds new ones if they are renewed meanwhile."""
_CONFLICTS = ("ConditionalRequestConflict", "OperationAborted")
_FAILURES = ("InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown")
_TRANSIENT = (500, 502, 503, 504, *EXPIRED_CODES, *_CONFLICTS, *_FAILURES)
"""HTTP statuses, and error codes of S3 whatever the status, after which a request, or one file in it, is retried."""


def is_permanent(error: BaseException) -> bool:
    """Return whether a retry would meet `error` again: a mistake in the request, missing files, no space, no memory."""
    return isinstance(error, _PERMANENT) or is_disk_full(error) or is_out_of_memory(error)


def is_disk_full(error: BaseException) -> bool:
    """Return whether `error` says that the disk is full or that the user's quota is used up."""
    return isinstance(error, DiskFull) or (isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT))


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that a CPU or GPU is out of memory, also torch's and Ray's own errors."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    is_torchs = isinstance(error, RuntimeError) and type(error).__module__.partition(".")[0] in ("builtins", "torch")
    return is_torchs and _NO_MEMORY.search(str(error)) is not None


def is_transient_on_s3(error: BaseException | None) -> bool:
    """Return whether `error` or its cause is transient: HTTP 5xx, a broken connection, a time-out."""
    from botocore import exceptions, parsers

    unanswered = (exceptions.ConnectionError, exceptions.HTTPClientError)
    broken_off = (exceptions.IncompleteReadError, exceptions.ResponseStreamingError, parsers.ResponseParserError)
    while error is not None:
        response = getattr(error, "response", None)
        if isinstance(response, dict):
            status = response.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status in _TRANSIENT or response.get("Error", {}).get("Code") in _TRANSIENT
        if isinstance(error, exceptions.SSLError):
            return False
        if isinstance(error, (*unanswered, *broken_off, TimeoutError, ConnectionError)):
            return True
        error = error.__cause__
    return False


def is_transient_download(error: BaseException) -> bool:
    """Return whether a retry may help a download: after an error of network or server, not if the file is missing."""
    if isinstance(error, urllib.error.HTTPError):
        return error.code in (408, 429) or error.code >= 500
    if not isinstance(error, OSError | HTTPException) or is_disk_full(error):
        return False
    reason = getattr(error, "reason", error)  # urllib wraps some
    return not isinstance(reason, FileNotFoundError | PermissionError | IsADirectoryError)
