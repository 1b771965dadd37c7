"""Errors of a job: which are permanent, what caused them, and how they are described to the follower of its log."""

import traceback
from typing import Any

from storage import files
from storage.uri import URI, redact
from tasks.learning.user_errors import UserCodeError

PERMANENT = (
    *("ValueError", "TypeError", "FileNotFoundError", "PermissionError", "Damaged", "DiskFull", "WrongChecksum"),
    *("NonFiniteLoss", "OutOfMemoryError", "DeadlineExceeded", "UserCodeError"),
)
"""Errors that a retry would meet again."""

_LONGEST = 2000
"""Characters of an error's message that are kept."""
_TRACE = "traceback.txt"


def described(error: BaseException, *, folder: URI) -> dict[str, Any]:
    """Describe the error that ended a job: type, message, and whether it is permanent.

    Args:
        error: Raised by the job.
        folder: Where to save the full traceback of an unexpected error; the message then names the file.
    """
    cause = root_cause(error)
    if files.is_disk_full(cause) and not isinstance(cause, files.DiskFull):  # raised while Ray Train itself wrote
        cause = files.DiskFull(f"the disk is full: {cause}; make room, then run the same command again")
    kinds = {kind.__name__ for kind in type(cause).__mro__}
    permanent = not kinds.isdisjoint(PERMANENT)
    message = str(cause).strip()[:_LONGEST]
    if isinstance(cause, UserCodeError) or not permanent:
        trace = getattr(cause, "trace", "") or redact("".join(traceback.format_exception(error)))
        message += _kept(trace, folder.child(_TRACE))
    return {"type": type(cause).__name__, "message": message, "permanent": permanent}


def _kept(trace: str, uri: URI) -> str:
    """Save `trace` at `uri` and return the line that names it; empty if it cannot be saved."""
    try:
        files.replace(uri, trace.encode())
    except Exception as error:
        if not files.is_trouble(error):
            raise
        return ""
    return f"\n  full traceback: {uri}"


def root_cause(error: BaseException) -> BaseException:
    """Return the original error, without what Ray, Ray Train and Ray Data have wrapped around it."""
    while True:
        failures = getattr(error, "worker_failures", None) or {}
        candidates = [*failures.values(), getattr(error, "cause", None), error.__cause__, error.__context__]
        inner = next((one for one in candidates if isinstance(one, BaseException) and one is not error), None)
        if inner is None or not type(error).__module__.startswith("ray"):
            return error
        error = inner
