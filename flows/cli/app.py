"""The one command line: `data-to-model`, and `flows/pipeline.py`, which is its command `run`.

Modules of the commands are imported after the command line has been parsed: an invalid one is refused at once.
"""

import importlib.metadata
import inspect
import io
import os
import pkgutil
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from flows.cli.commands import COMMANDS, ExportOptions
from flows.cli.options import RECIPE, FlowOptions, StorageOptions
from storage import exits, terminal
from tasks.jobs import dashboard

_Function = TypeVar("_Function", bound=Callable[..., object])
STARTING = "starting: checking the request ..."
"""First line of a run: the imports and checks that follow it take seconds."""

app = typer.Typer(
    epilog=exits.verbatim("""
    examples:
      data-to-model run                                train on the bundled digits; results go to ./data
      data-to-model run --data ~/photos --check        your own images, <class>/*.jpg: what would be done
      data-to-model run --data ~/photos
      data-to-model predict --data ~/new-photos --csv predictions.csv

    Help for a command: data-to-model run --help"""),
    add_completion=False,
    rich_markup_mode=None,
)


@app.callback(invoke_without_command=True)
def common(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    """From images and labels to a model that retrains itself."""
    if version:
        print(f"data-to-model {importlib.metadata.version('data-to-model')}")
        raise typer.Exit


def _command(epilog: str) -> Callable[[_Function], _Function]:
    """Register the decorated function as a command; its docstring is the help."""
    return exits.command(app, epilog=exits.verbatim(epilog))


def taking(options: type[StorageOptions], function: Callable[[Any], object]) -> Callable[..., object]:
    """Return the command that calls `function` with `options`; it has a parameter for each of their fields."""

    def command(**values: Any) -> object:
        request = options(**values)
        if isinstance(request, FlowOptions | ExportOptions) and not values.get("check"):
            exits.note(STARTING)
        if values.get("dashboard"):
            os.environ[dashboard.NAME] = "1"
        return function(request)

    command.__name__, command.__doc__ = options.__name__.removesuffix("Options").lower(), options.__doc__
    command.__signature__ = inspect.signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = get_type_hints(options, include_extras=True)
    return command


def _carry_out(options: StorageOptions) -> object:
    return pkgutil.resolve_name(options.runs)(options)


for options in COMMANDS:
    _command(options.epilog)(taking(options, _carry_out))


@_command("""
examples:
  data-to-model recipes
  data-to-model recipes images-finetune                        each field as --set takes it, default and meaning""")
def recipes(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help=f"{RECIPE} (default: list all)")] = None,
) -> int:
    """List the recipes, or every field of one: its value, its default and its meaning."""
    from tasks.learning import recipes

    with exits.refused_if_invalid():
        terminal.show_lines(recipes.described(recipes.load(name)) if name else terminal.table(recipes.table()))
    return 0


@_command("""
Ctrl-C stops it; the next start resumes the active runs. It also restarts runs that crashed, each at most three times.
Runs, logs and schedules are in PREFECT_HOME (~/.prefect), the server's password in PREFECT_HOME/make-up.env. The server
listens on this machine only, unless --host says otherwise.""")
def up(
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="address to listen on")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=1, max=65534, metavar="N", help="port of server and UI; reports get the next one")
    ] = 4200,
) -> int:
    """Start a local Prefect server and worker, with the deployments of prefect.yaml and deployments.yaml."""
    from flows.server import up

    return up.main(host, port)


@_command("""
The command exports the model first if necessary. It reads the registry every 3 seconds: after a promotion or a rollback
the next request gets the new champion. If the new champion cannot be used, the current model stays in use.

environment:
  PIPELINE_SERVE_PASSWORD  needed with --host: the password, by HTTP Basic, of all requests but /health

examples:
  data-to-model serve champion:photos
  curl --data-binary @photo.jpg http://127.0.0.1:8000/predict
  curl http://127.0.0.1:8000/health                            also /metrics, for Prometheus""")
def serve(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=exits.NAMED)] = "champion",
    storage: exits.Storage = "./data",
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="address to listen on")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="N", help="port to listen on")] = 8000,
    queue: Annotated[
        int, typer.Option(min=1, metavar="N", help="most requests at once, including waiting ones; more get 503")
    ] = 32,
    max_megabytes: Annotated[
        int, typer.Option(min=1, metavar="N", help="largest image file; larger ones get 413")
    ] = 20,
) -> int:
    """Serve a model over HTTP: send an image, get its class, probabilities and distance."""
    exits.note(STARTING)
    from flows.server import serve

    return serve.main(storage, model, host=host, port=port, queue=queue, megabytes=max_megabytes)


@_command("""
environment:
  PREFECT_API_URL  the server, such as http://127.0.0.1:4200/api""")
def deploy() -> int:
    """Check prefect.yaml and deployments.yaml, then register their deployments on a Prefect server."""
    from flows.server import deploy

    return deploy.main()


@_command("""
environment:
  PREFECT_API_URL  the server to watch, such as http://127.0.0.1:4200/api

Runs until Ctrl-C. One such process per server is enough; `make up` includes it.""")
def watch() -> int:
    """Restart crashed runs of deployments, each at most three times, and mark runs as Crashed whose process died."""
    from flows.server import watch

    return watch.main()


def main(name: str | None = None, *, words: Sequence[str] | None = None) -> int:
    """Run a command, that of a script or else the first of `words`, and return its exit code.

    Without any word it prints the help. An invalid request is one line on stderr, with a hint at what was meant, and 2.
    """
    prog = "python flows/pipeline.py" if name else "data-to-model"
    words = ["--help" if word == "-h" else word for word in (sys.argv[1:] if words is None else words)]
    words = words or ([] if name else ["--help"])
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
            message = re.sub(r"Input should be a valid integer, .*", "must be a whole number, such as 2", message)
            message = message.replace("Input should be", "must be")
            exits.refuse(f"{_hint(message, name or words[0])}; see {path} --help")

    return exits.guarded(work)


def _hint(message: str, command: str) -> str:
    """Add to a message about the words of a command what their user probably meant."""
    if command in ("run", "audit", "backfill") and (option := re.match(r"No such option: --(\S+)", message)):
        from tasks.learning import recipes

        field = recipes.field_meant(option[1].replace("-", "_"))
        return f"{option[0]} (did you mean --set {field}=...?)" if field else message
    if message == f"No such command {command!r}" and os.path.exists(command):
        return f"{message}. Did you mean 'run --data {shlex.quote(command)}'?"
    if command in ("run", "predict") and (extra := re.match(r"Got unexpected extra argument.* \((\S+)\)$", message)):
        flag = "--set" if "=" in extra[1] else "--data" if os.path.exists(extra[1]) else ""
        return f"{message} (did you mean {flag} {shlex.quote(extra[1])}?)" if flag else message
    return message
