"""Errors of a job: translated once, where they are raised, into what the user reads and whether a retry may help.

A training worker saves the text for its driver; the driver writes it to the log, and the follower raises it.
"""

import contextlib
import traceback

from storage import error_policy, files
from storage.error_policy import DiskFull, Permanent
from storage.uri import URI, redact_text
from tasks.learning.user_code import UserCodeError

_LONGEST = 2000
"""Characters of an error's message that are kept."""
_ERROR_FILE = "error.txt"
_MEMORY_ADVICE = (
    "use fewer --workers, a smaller batch_size, --set micro_batches=4 or --set loader=streaming "
    "(Troubleshooting, in the documentation, has more)"
)


class JobFailed(RuntimeError):
    """A job ended without its result; the message says why. A retry may help."""


class JobRefused(Permanent, JobFailed):
    """A job ended with an error that a retry would meet again."""


def job_error(error: BaseException, *, folder: URI) -> JobFailed:
    """Translate the error that ended a job into what the user reads.

    Args:
        error: Raised by the job.
        folder: Where to save the full traceback of an unexpected error; the message then names the file.
    """
    cause = root_cause(error)
    if isinstance(cause, JobFailed):
        return cause
    is_permanent = error_policy.is_permanent(cause)
    kind, message = type(cause).__name__, str(cause).strip()[:_LONGEST]
    if error_policy.is_out_of_memory(cause):
        first_line = message.partition("\n")[0] or "no memory is left"  # Ray's message goes on for pages
        kind, message = "OutOfMemoryError", f"{first_line}; {_MEMORY_ADVICE}"
    elif error_policy.is_disk_full(cause) and not isinstance(cause, DiskFull):  # raised while Ray Train itself wrote
        kind, message = DiskFull.__name__, f"the disk is full: {cause}; make room, then run the same command again"
    # The message of UserCodeError names the original error; a user's mistake needs no type.
    if not isinstance(cause, UserCodeError) and type(cause) is not ValueError:
        message = f"{kind}: {message}"
    if isinstance(cause, UserCodeError) or not is_permanent:
        trace = getattr(cause, "trace", "") or redact_text("".join(traceback.format_exception(error)))
        place = folder.child("traceback.txt")
        with contextlib.suppress(OSError):
            files.put(place, trace.encode())
            message += f"\n  full traceback: {place}"
    return (JobRefused if is_permanent else JobFailed)(message)


def root_cause(error: BaseException) -> BaseException:
    """Return the original error, without what Ray, Ray Train and Ray Data have wrapped around it."""
    while True:
        failures = getattr(error, "worker_failures", None) or {}
        causes = (getattr(error, name, None) for name in ("cause", "controller_failure"))
        candidates = [*failures.values(), *causes, error.__cause__, error.__context__]
        inner = next((cause for cause in candidates if isinstance(cause, BaseException) and cause is not error), None)
        if inner is None or not type(error).__module__.startswith("ray"):
            return error
        error = inner


def save_error(attempt: URI, error: BaseException) -> None:
    """Save the permanent `error` in the folder `attempt`: Ray Train would retry it. The first one stays."""
    if has_saved_error(attempt):  # else the traceback would be this error's
        return
    message = str(job_error(error, folder=attempt.parent))
    with contextlib.suppress(FileExistsError, DiskFull):
        files.put(attempt.child(_ERROR_FILE), message.encode(), mode="create")


def has_saved_error(attempt: URI) -> bool:
    return files.exists(attempt.child(_ERROR_FILE))


def raise_saved_error(attempt: URI) -> None:
    if has_saved_error(attempt):
        raise JobRefused(files.read(attempt.child(_ERROR_FILE)).decode())
