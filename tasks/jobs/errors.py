"""Errors of a job: saved by a worker for the driver, which writes them to the log for the follower.

`storage.error_policy` says which of them are permanent.
"""

import contextlib
import json
import re
import traceback
from typing import TypedDict

from storage import error_policy, files
from storage.error_policy import DiskFull
from storage.uri import URI, redact_text
from tasks.learning.user_code import UserCodeError

_LONGEST = 2000
"""Characters of an error's message that are kept."""
_TRACE = "traceback.txt"
_ERROR_FILE = "error.json"
_MONITOR = re.compile(
    r"due to the node running low on memory.*?IP: (?P<node>[^,]+),"
    r".*?was (?P<used>[\d.]+)GB used / (?P<all>[\d.]+)GB limit.*?exceeded threshold of (?P<limit>\d+)B",
    re.DOTALL,
)
_KILLED = re.compile(
    r"Selected to kill: .*?task name=(?P<name>[^,]*),.*?pid=(?P<pid>\d+), actual memory used=(?P<gb>[\d.]+)GB"
)
"""What Ray 2.60 says of a node whose memory is full, and of a process that it killed there."""
_MEMORY_ADVICE = (
    "use fewer --workers, a smaller batch_size, --set micro_batches=4 or --set loader=streaming "
    "(docs/troubleshooting.md)"
)


class Description(TypedDict):
    """Fields of an error that are passed to the user."""

    type: str
    message: str
    permanent: bool


class WorkerError(Exception):
    """An error that a training worker saved for its driver."""

    def __init__(self, description: Description) -> None:
        super().__init__(description)
        self.description = description

    def __str__(self) -> str:
        return self.description["message"]


def described(error: BaseException, *, folder: URI) -> Description:
    """Describe the error that ended a job.

    Args:
        error: Raised by the job.
        folder: Where to save the full traceback of an unexpected error; the message then names the file.
    """
    cause = root_cause(error)
    if isinstance(cause, WorkerError):
        return cause.description
    permanent = error_policy.is_permanent(cause)
    kind, message = type(cause).__name__, str(cause).strip()[:_LONGEST]
    if error_policy.is_out_of_memory(cause):
        kind, message = "OutOfMemoryError", killed_for_memory(str(cause)) or message
    elif error_policy.is_disk_full(cause) and not isinstance(cause, DiskFull):  # raised while Ray Train itself wrote
        kind, message = DiskFull.__name__, f"the disk is full: {cause}; make room, then run the same command again"
    if isinstance(cause, UserCodeError) or not permanent:
        trace = getattr(cause, "trace", "") or redact_text("".join(traceback.format_exception(error)))
        message += _kept(trace, folder.child(_TRACE))
    return {"type": kind, "message": message, "permanent": permanent}


def killed_for_memory(report: str) -> str | None:
    """Return the report of Ray's memory monitor as one line: process, its size, limit, advice; none for other text."""
    node, killed = _MONITOR.search(report), list(_KILLED.finditer(report))
    if node is None or not killed:
        return None
    process = max(killed, key=lambda match: float(match["gb"]))
    name = process["name"].removesuffix(".__init__").rpartition(":")[2]
    memory = f"{node['used']} of {node['all']} GB used, limit {int(node['limit']) / 2**30:.2f} GB"
    return (
        f"Ray ended process {process['pid']} ({name}, {process['gb']} GB) on node {node['node']}, because its memory "
        f"was full: {memory}; {_MEMORY_ADVICE}"
    )


def user_message(error: Description) -> str:
    """Return the text that the user reads."""
    # The message of UserCodeError names the original error; a user's mistake (ValueError) needs no type.
    is_whole = error["type"] in (UserCodeError.__name__, ValueError.__name__)
    return error["message"] if is_whole else f"{error['type']}: {error['message']}"


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
    """Save `error` in the folder `attempt` for the driver, since Ray Train retries every error; the first one stays."""
    if has_saved_error(attempt):  # else the traceback would be this error's
        return
    content = json.dumps(described(error, folder=attempt.parent)).encode()
    with contextlib.suppress(FileExistsError, DiskFull):
        files.put(attempt.child(_ERROR_FILE), content, mode="create")


def has_saved_error(attempt: URI) -> bool:
    """Return True if an error was saved in the folder `attempt`."""
    return files.exists(attempt.child(_ERROR_FILE))


def raise_saved_error(attempt: URI) -> None:
    """Raise `WorkerError` if an error was saved in the folder `attempt`."""
    if has_saved_error(attempt):
        raise WorkerError(json.loads(files.read(attempt.child(_ERROR_FILE))))


def _kept(trace: str, uri: URI) -> str:
    """Save `trace` at `uri` and return the line that names it; empty if it cannot be saved."""
    try:
        files.put(uri, trace.encode())
    except Exception as error:
        if not error_policy.is_storage_error(error):
            raise
        return ""
    return f"\n  full traceback: {uri}"
