"""Permanent errors of training workers: left in a file for the driver, since Ray Train retries every error."""

import contextlib
import json

from storage import files, manifest
from storage.uri import URI
from tasks.learning.checkpoint import WrongResume
from tasks.learning.epoch_metrics import NonFiniteLoss, WrongBatchSize
from tasks.learning.resume import NumericsChanged
from tasks.learning.user_errors import UserCodeError


class OutOfMemoryError(RuntimeError):
    """Out of memory: takes the place of torch's error of this name where torch is not imported."""


COMMON: tuple[type[Exception], ...] = (NonFiniteLoss, WrongBatchSize, WrongResume, NumericsChanged)
"""Errors that all ranks meet together, so that every one can simply return."""
_KINDS: tuple[type[Exception], ...] = (
    *COMMON,
    *(UserCodeError, manifest.Damaged, files.DiskFull, OutOfMemoryError, ValueError, TypeError),
)
"""Permanent errors; an error is reported as the first of these that it is an instance of."""
_NAME = "error.json"


def leave(attempt: URI, error: BaseException) -> None:
    """Save `error` in the folder `attempt` if it is permanent; the first one saved stays."""
    kind = _kind(error)
    if kind is not None:
        trace = {"trace": error.trace} if isinstance(error, UserCodeError) else {}
        content = json.dumps({"type": kind.__name__, "message": str(error), **trace})
        with contextlib.suppress(FileExistsError, files.DiskFull):
            files.create(attempt.child(_NAME), content.encode())


def is_left(attempt: URI) -> bool:
    """Return True if an error was left in the folder `attempt`."""
    return files.exists(attempt.child(_NAME))


def raise_left(attempt: URI) -> None:
    """Raise the error that was left in the folder `attempt`, if any."""
    if is_left(attempt):
        error = json.loads(files.read(attempt.child(_NAME)))
        if error["type"] == UserCodeError.__name__:
            raise UserCodeError(error["message"], error["trace"])
        kinds = {kind.__name__: kind for kind in _KINDS}
        raise kinds[error["type"]](error["message"])


def told(error: BaseException) -> BaseException:
    """Return the permanent error that `error` amounts to, or `error` itself."""
    kind = _kind(error)
    return error if kind is None or isinstance(error, kind) else kind(str(error))


def _kind(error: BaseException) -> type[Exception] | None:
    """Return the permanent error that `error` counts as, None if a retry may succeed."""
    if files.is_disk_full(error):
        return files.DiskFull
    kind = type(error)
    of_torch = kind.__name__ == OutOfMemoryError.__name__ and kind.__module__.partition(".")[0] == "torch"
    on_cpu = "can't allocate memory" in str(error)  # torch's message on a CPU
    if of_torch or on_cpu or isinstance(error, MemoryError):
        return OutOfMemoryError
    return next((kind for kind in _KINDS if isinstance(error, kind)), None)
