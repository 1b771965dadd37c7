"""Errors of the user's own code: shown with the lines of their file, and permanent, since a retry fails again."""

import contextlib
import inspect
import itertools
import linecache
import traceback
from collections.abc import Iterator
from typing import Any

from storage import error_policy
from storage.error_policy import Permanent
from storage.uri import redact_text
from tasks.learning import user_code

_FRAMES = 3
"""Maximum number of frames of the user's file that are shown, the innermost ones."""
_LONGEST = 1500
"""Maximum characters of the error's own message that are shown."""
_OURS = ("storage", "tasks")
_BACKWARD = ("needed for gradient computation", "does not require grad")
"""Parts of torch's messages if the backward pass fails because of what the model did in its forward pass."""
_COLLECTIVES = ("gloo", "NCCL")
"""Parts of messages that mark a torch `RuntimeError` as a fault of the network, not of the user's code."""


class UserCodeError(Permanent):
    """The user's code failed; the message ends with the last lines of it that ran."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message, trace)  # pickling needs both
        self.trace = trace

    def __str__(self) -> str:
        return str(self.args[0])


@contextlib.contextmanager
def wrap_user_errors(*, model: str = "") -> Iterator[None]:
    """Turn errors of the user's own code inside the block into `UserCodeError`; let other errors pass.

    Args:
        model: The recipe's model. If it is the user's own, errors of its layers count too, although no line of the
            user's file runs then.
    """
    try:
        yield
    except Exception as error:
        lines = None if _is_known_failure(error) else _lines(error, model)
        if lines is None:
            raise
        message = f"{type(error).__name__}: {redact_text(str(error)).strip()[:_LONGEST]}"
        if isinstance(error, ModuleNotFoundError):
            message += "; install it, or if it lies beside the recipe, import it at the top of the recipe's file"
        whole = redact_text("".join(traceback.format_exception(error)))
        raise UserCodeError("\n".join([message, *lines]), whole) from error


def _is_known_failure(error: Exception) -> bool:
    """Return whether `error` is one of this project's, or says that memory or another rank failed."""
    package = type(error).__module__.partition(".")[0]
    if package in _OURS or error_policy.is_out_of_memory(error):
        return True
    if package == "torch" and type(error).__name__.startswith("Dist"):
        return True
    return isinstance(error, RuntimeError) and any(word in str(error) for word in _COLLECTIVES)


def _lines(error: Exception, model: str) -> list[str] | None:
    """Return the lines of the user's file that led to `error`, innermost last; none if it came from elsewhere."""
    frames = list(traceback.walk_tb(error.__traceback__))
    called = [(str(frame.f_globals.get("__name__")), frame.f_code.co_name) for frame, _ in frames]
    is_storage = error_policy.is_storage_error(error)
    theirs = [number for number, (frame, _) in enumerate(frames) if user_code.is_theirs(frame.f_globals)]
    if theirs:
        if is_storage and any(module.startswith("storage.") for module, _ in called[theirs[-1] :]):
            return None
        shown = [frames[number] for number in theirs[-_FRAMES:]]
        told = [
            _format_frame(frame.f_globals, frame.f_code.co_filename, line, frame.f_code.co_name)
            for frame, line in shown
        ]
        return list(itertools.chain.from_iterable(told))
    is_model_call = ("tasks.learning.modeling", "forward") in called  # the classifier's, which calls the model
    is_model_call |= isinstance(error, RuntimeError) and any(words in str(error) for words in _BACKWARD)
    if user_code.is_reference(model) and is_model_call and not is_storage:
        factory = user_code.resolve(model)
        made = inspect.unwrap(factory).__code__
        return _format_frame(
            factory.__globals__, made.co_filename, made.co_firstlineno, f"{made.co_name}, which made the model"
        )
    return None


def _format_frame(names: dict[str, Any], file: str, line: int, what: str) -> list[str]:
    source = redact_text(linecache.getline(file, line).strip())
    return [f"  {user_code.place_of(names)}, line {line}, in {what}", *([f"    {source}"] if source else [])]
