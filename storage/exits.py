"""Every command's way in and out: parsing its words, exit codes, and the line on stderr that explains a failure."""

import contextlib
import inspect
import io
import os
import re
import select
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, NoReturn, TypeVar

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

_Hint = Callable[[str, Sequence[str]], str]
_Command = TypeVar("_Command", bound=Callable[..., Any])


def command(app: typer.Typer, **options: Any) -> Callable[[_Command], _Command]:
    """Register the decorated function as a command of `app`; its docstring is the help."""

    def register(function: _Command) -> _Command:
        text = inspect.getdoc(function) or ""
        summary = " ".join(text.partition("\n\n")[0].split())  # else the list of commands cuts it
        return app.command(help=verbatim(text), short_help=summary, **options)(function)

    return register


def verbatim(text: str) -> str:
    """Mark each paragraph of a help text so that its lines are kept as they are."""
    return "\n\n".join(f"\b\n{paragraph}" for paragraph in inspect.cleandoc(text).split("\n\n"))


def parse_csv(text: str) -> Path:
    """Return the path of a file that can be written."""
    path = Path(text).expanduser().resolve()
    if path.is_dir() or not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"must be a file in an existing, writable folder, got {text!r}; choose another")
    return path


def parse_folder(text: str) -> Path:
    """Return the path of a folder that is empty or can be created."""
    path = Path(text).expanduser().absolute()
    is_empty = path.is_dir() and not any(path.iterdir())
    if not is_empty and (path.exists() or not os.access(path.parent, os.W_OK)):
        raise typer.BadParameter(f"must be an empty folder, or new in a writable one, got {text!r}; choose another")
    return path


def execute(
    app: typer.Typer,
    words: Sequence[str],
    *,
    name: str | None = None,
    prog: str,
    hint: _Hint = lambda message, _: message,
) -> int:
    """Run a command, `name` or else the first of `words`, and return its exit code.

    Without any word it prints the help. An invalid request is one line on stderr, which `hint` completes, and 2.
    """
    words = ["--help" if word == "-h" else word for word in words] or ([] if name else ["--help"])
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # file names may contain any bytes
    group: Any = typer.main.get_command(app)

    def work() -> int:
        try:
            with (group.commands[name] if name else group).make_context(prog, list(words)) as context:
                return context.command.invoke(context) or 0
        except typer.Exit as ended:  # after --help
            return ended.exit_code
        except typer.TyperException as error:
            path = f"{prog} {words[0]}" if not name and words[0] in group.commands else prog
            message = error.format_message().rstrip(".")
            message = re.sub(r"^Invalid value for '(.*?)': (Value error, )?", r"\1: ", message)
            message = hint(message, [name, *words] if name else words)
            refuse(f"{message}; see {path} --help")

    return guarded(work)


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
    """Print `text` on stderr."""
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
