"""Every command's way out: exit codes, and the line on stderr that explains a failure; and what all of them share."""

import contextlib
import inspect
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, NoReturn, TypeVar

import typer

from storage import error_policy, terminal
from storage.process import reach_loopback_directly

FAILED, INVALID, INTERRUPTED, TERMINATED = 1, 2, 130, 143
"""Exit codes: failure, invalid request, Ctrl-C, SIGTERM; 0 is success."""
NAMED = (
    "URI or name of a result, as `data-to-model ls` prints it; or champion:NAME; or champion: the only one, or the "
    "only one trained on your own images"
)
"""How every command takes a result."""
Storage = Annotated[
    str,
    typer.Option(metavar="URI", envvar="PIPELINE_STORAGE", help="storage root: a folder or s3://bucket/prefix"),
]

_Command = TypeVar("_Command", bound=Callable[..., object])


def command(app: typer.Typer, *, epilog: str | None = None) -> Callable[[_Command], _Command]:
    """Register the decorated function as a command of `app`; its docstring is the help."""

    def register(function: _Command) -> _Command:
        text = inspect.getdoc(function) or ""
        summary = " ".join(text.partition("\n\n")[0].split())  # else the list of commands cuts it
        return app.command(help=verbatim(text), short_help=summary, epilog=epilog)(function)

    return register


def verbatim(text: str) -> str:
    """Mark each paragraph of a help text so that its lines are kept as they are."""
    return "\n\n".join(f"\b\n{paragraph}" for paragraph in inspect.cleandoc(text).split("\n\n"))


def parse_csv(text: str) -> Path:
    path = Path(text).expanduser().resolve()
    if path.is_dir() or not path.parent.is_dir() or not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"must be a file in an existing, writable folder, got {text!r}; choose another")
    return path


def parse_folder(text: str) -> Path:
    path = Path(text).expanduser().absolute()
    is_empty = path.is_dir() and not any(path.iterdir())
    if not is_empty and (path.exists() or not os.access(path.parent, os.W_OK)):
        raise typer.BadParameter(f"must be an empty folder, or new in a writable one, got {text!r}; choose another")
    return path


def guarded(work: Callable[[], int]) -> int:
    """Run `work` and return its exit code; report a failure or an interruption on stderr, but not a closed pipe."""
    reach_loopback_directly()
    earlier = signal.signal(signal.SIGTERM, _terminate)  # Prefect's flows call it, too, after their own
    try:
        code = work()
        sys.stdout.flush()
        return code
    except SystemExit as ended:  # from `refuse` or `_terminate`
        if ended.code == TERMINATED:
            note("Terminated. Run the same command again to resume.")
        return ended.code if isinstance(ended.code, int) else FAILED
    except KeyboardInterrupt:
        note("Interrupted. Run the same command again to resume.")
        return INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            return FAILED
        if os.environ.get("PIPELINE_TRACEBACK"):
            raise
        _explain(error)
        return FAILED
    finally:
        signal.signal(signal.SIGTERM, earlier)


def _terminate(*_: object) -> NoReturn:
    raise SystemExit(TERMINATED)


def _explain(error: Exception) -> None:
    package = type(error).__module__.partition(".")[0]
    lines = str(error).strip().splitlines() or [""]
    is_plain = package in ("flows", "storage", "tasks", "__main__") or type(error) is ValueError
    note("\n".join([f"error: {lines[0]}" if is_plain else f"error: {type(error).__name__}: {lines[0]}", *lines[1:]]))
    if not error_policy.is_permanent(error):
        note("Run the same command again to resume; PIPELINE_TRACEBACK=1 shows the traceback.")
    elif not is_plain:
        note("PIPELINE_TRACEBACK=1 shows the traceback.")


def _is_output_closed() -> bool:
    """Return whether the reader of standard output closed the pipe, as `head` does; discard the output then."""
    output, state = sys.stdout.fileno(), select.poll()
    state.register(output, 0)
    is_closed = any(event & select.POLLERR for _, event in state.poll(0))
    if is_closed:
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    return is_closed


def note(text: str) -> None:
    terminal.show(text, sys.stderr)


def refuse(text: str) -> NoReturn:
    """Exit with 2, for an invalid request, after one line on stderr."""
    note(f"error: {' '.join(text.split())}")
    raise SystemExit(INVALID)


@contextlib.contextmanager
def refused_if_invalid() -> Iterator[None]:
    """Turn a `ValueError` in the block, or in the decorated function, into the exit of `refuse`."""
    try:
        yield
    except ValueError as error:
        refuse(str(error))
