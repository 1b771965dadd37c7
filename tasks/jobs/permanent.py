"""Errors that another try of a training worker would meet again: left in a file, since Ray Train tries them all."""

import contextlib
import json

from storage import files, manifest
from storage.uri import URI
from tasks.learning.checkpoint import WrongResume
from tasks.learning.epoch import NonFiniteLoss, WrongBatchSize


class OutOfMemoryError(RuntimeError):
    """What torch's of this name says, where there need be no torch."""


COMMON: tuple[type[Exception], ...] = (NonFiniteLoss, WrongBatchSize, WrongResume)
"""What every rank meets alike, so that all of them can simply return."""
_KINDS: tuple[type[Exception], ...] = (
    *COMMON,
    *(manifest.Damaged, files.DiskFull, OutOfMemoryError, ValueError, TypeError),
)
"""The first of these that an error is an instance of names it."""
_NAME = "error.json"


def leave(attempt: URI, error: BaseException) -> None:
    """Leave `error` in the folder `attempt` when it is permanent; the first one that is left stays."""
    kind = _kind(error)
    if kind is not None:
        content = json.dumps({"type": kind.__name__, "message": str(error)})
        with contextlib.suppress(FileExistsError, files.DiskFull):
            files.create(attempt.child(_NAME), content.encode())


def is_left(attempt: URI) -> bool:
    """Whether one was left there."""
    return files.exists(attempt.child(_NAME))


def raise_left(attempt: URI) -> None:
    """Raise the error that was left there, if one was."""
    if is_left(attempt):
        error = json.loads(files.read(attempt.child(_NAME)))
        kinds = {kind.__name__: kind for kind in _KINDS}
        raise kinds[error["type"]](error["message"])


def told(error: BaseException) -> BaseException:
    """`error`, or the permanent error that it amounts to."""
    kind = _kind(error)
    return error if kind is None or isinstance(error, kind) else kind(str(error))


def _kind(error: BaseException) -> type[Exception] | None:
    """As which of the permanent errors `error` is told, none when another try may end otherwise."""
    if files.is_disk_full(error):
        return files.DiskFull
    kind = type(error)
    of_torch = kind.__name__ == OutOfMemoryError.__name__ and kind.__module__.partition(".")[0] == "torch"
    on_cpu = "can't allocate memory" in str(error)  # how torch says it there
    if of_torch or on_cpu or isinstance(error, MemoryError):
        return OutOfMemoryError
    return next((kind for kind in _KINDS if isinstance(error, kind)), None)
