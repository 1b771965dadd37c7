"""The one command line: `data-to-model`, and `flows/pipeline.py`, which is its command `run`.

Modules of the commands are imported after the command line has been parsed: an invalid one is refused at once.
"""

import functools
import importlib.metadata
import inspect
import io
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from flows.cli.options import (
    RECIPE,
    AuditOptions,
    BackfillOptions,
    DiffOptions,
    ExportOptions,
    FlowOptions,
    ForgetOptions,
    MistakesOptions,
    NextOptions,
    PredictOptions,
    RunOptions,
    SimilarOptions,
    StorageOptions,
    ValueOptions,
)
from storage import exits, terminal
from tasks.jobs import dashboard

_Options = TypeVar("_Options", bound=StorageOptions)
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
    """Register the decorated function as a command with the options of its parameter; its docstring is the help."""

    def register(function: _Function) -> _Function:
        options = get_type_hints(function).get("options")
        exits.command(app, epilog=exits.verbatim(epilog))(taking(options, function) if options else function)
        return function

    return register


def taking(options: type[_Options], function: Callable[[_Options], object]) -> Callable[..., object]:
    """Return `function` with a parameter for each field of `options`, instead of one for all of them."""

    @functools.wraps(function)
    def command(**values: Any) -> object:
        request = options(**values)
        if isinstance(request, FlowOptions | ExportOptions) and not values.get("check"):
            exits.note(STARTING)
        if values.get("dashboard"):
            os.environ[dashboard.NAME] = "1"
        return function(request)

    command.__signature__ = inspect.signature(options)  # type: ignore[attr-defined]
    command.__annotations__ = get_type_hints(options, include_extras=True)
    del command.__wrapped__  # type: ignore[attr-defined]
    return command


@_command("""
examples:
  python flows/pipeline.py                                     run everything, results below ./data
  python flows/pipeline.py                                     again: existing results are reused
  python flows/pipeline.py --set epochs=5 --set seed=1         another training on the same data
  python flows/pipeline.py --storage s3://bucket/prefix        shared storage (AWS_* variables, AWS_ENDPOINT_URL)
  RAY_ADDRESS=http://head:8265 python flows/pipeline.py ...    on a Ray cluster
  python flows/pipeline.py --mirror ./mnist-files              without internet, from a folder
  python flows/pipeline.py --check ...                         check the setup without running

After an interruption or failure, run the same command again to resume.
exit codes: 0 success (promoted or not), 1 failure, 2 invalid request, 130 interrupted, 143 terminated""")
def run(options: RunOptions) -> int:
    """Build a trained, evaluated and promoted model from images.

    Download, ingest, preprocess, train, predict, evaluate, promote, report. Existing results are
    checked and reused.
    """
    from flows.cli import start

    return start.run(options)


@_command("""
examples:
  data-to-model predict --data ~/new-photos --csv table.csv    new images, with the champion
  data-to-model predict --data data/datasets/raw/mnist-1d9802c1c0d9 --split test""")
def predict(options: PredictOptions) -> int:
    """Predict every row of a dataset, or every image of a folder, exactly once.

    With or without labels; writes Parquet. New images are resized as in training and stored as a
    raw dataset below --storage, named after their content. Each prediction has the SHA-256 of its
    file beside it.
    """
    from flows.cli import start

    return start.predict(options)


@_command("""
A version is a raw dataset below <storage>/datasets/raw; `data-to-model ls raw` lists them. The oldest is the one that
was committed first. Existing results are reused: running the command again adds only what is missing.

examples:
  data-to-model backfill --recipe mnist-resnet18               all versions of mnist
  data-to-model backfill photos-1d9802c1c0d9 photos-...        only these""")
def backfill(options: BackfillOptions) -> int:
    """Train and evaluate a model on several versions of a source's data.

    Compares each with the champion, and records the decisions. The champion does not change.
    """
    from flows.cli import start

    return start.backfill(options)


@_command("""
Each image is judged by a model that was not trained on it. The models are trained like those of `run`, and kept until
`data-to-model gc` deletes them: they take N times the space of the data. Repeating the command finds the result.

examples:
  data-to-model audit ~/photos --copy-to suspects              your own images; copies named after both classes
  data-to-model audit mnist --json                             a source, its training and test images alike""")
def audit(options: AuditOptions) -> int:
    """List images whose labels are probably wrong, worst first.

    Fits a linear classifier to the embeddings of four fifths of the images, five times, and compares
    what it says of the last fifth with the labels (confident learning). Writes
    <storage>/audits/<name>/ with a page, index.html.
    """
    from flows.cli import start

    return start.audit(options)


@_command("""
examples:
  data-to-model next ~/unlabeled --copy-to to-label            50 images, copies named after rank and predicted class
  data-to-model next ~/unlabeled --count 200 --csv next.csv""")
def next(options: NextOptions) -> int:
    """List the unlabeled images whose labels would teach a model most.

    Those whose class the model is least sure of, and which are not all alike: k-means of the
    embeddings, weighted by uncertainty. Images that it was trained on, and copies, are left out.
    """
    from flows.cli.neighbors import next_to_label

    return next_to_label(options)


@_command("""
examples:
  data-to-model similar ~/odd.jpg                              with the champion
  data-to-model similar ~/odd.jpg --count 20 --model champion:photos""")
def similar(options: SimilarOptions) -> int:
    """List the training, validation and test images most like an image, as a model sees them.

    By the cosine of their embeddings, what the model's backbone says about an image. Those of all
    images are computed once, and copied from then on.
    """
    from flows.cli.neighbors import similar

    return similar(options)


@_command("""
If it is interrupted, the same command continues; start no other run until it has ended.

examples:
  data-to-model forget ~/removed/17.jpg --dry-run              what would be made again, and deleted
  data-to-model forget ~/removed/17.jpg
  data-to-model forget 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08""")
def forget(options: ForgetOptions) -> int:
    """Delete all that was ever made of an image, and make the champions again without it.

    First move the image out of the data's folder. A champion that was made of it is trained again
    on that folder, and replaced whatever the gate says; its exports are made again, too. Then all
    datasets, embeddings, models, predictions, exports, audits and reports that were made of the
    image, of a file with its pixels, or with such a model, are deleted whatever their age. Their
    names and digests are kept in <storage>/forgotten/<SHA-256>.json.
    """
    from flows.cli.forgetting import forget

    return forget(options)


@_command("""
examples:
  data-to-model value                                          the 20 images that cost the champion most
  data-to-model value --by camera --model champion:photos""")
def value(options: ValueOptions) -> int:
    """List the training images that cost a probe most: without them, its test metric is better.

    A Newton step ranks all images; without each of the first ones the probe is fitted again. Points
    and loss are what a run without the image gives, minus the values now. Finally all listed
    images that raise the test loss are left out together.
    """
    from flows.cli.value import value

    return value(options)


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
examples:
  data-to-model export champion:photos                         model.onnx, its card, and preprocess.py for photos
  data-to-model export data/checkpoints/mnist-resnet18-e2b527dc0150""")
def export(options: ExportOptions) -> int:
    """Export a model to a file that other programs run without this project.

    Writes <storage>/exports/<name>/: the file, a README, and preprocess.py, which resizes a
    photo as in training. The file is run over all test rows first. If a logit differs from the
    model's by more than 1e-5 plus a thousandth of the largest logit, nothing is exported.
    """
    from flows.cli import start

    return start.export(options)


@_command("""
examples:
  data-to-model mistakes                                       of the latest run, worst first
  data-to-model mistakes champion:photos --class dog --as cat --copy-to ./look-at
  data-to-model mistakes data/evaluations/photos-images-finetune-f747d2fe2e4a --csv mistakes.csv""")
def mistakes(options: MistakesOptions) -> int:
    """List the test rows that the model of a run gets wrong, by file, worst first.

    Worst is the most confident: the probability is that of the wrong class. Copies are the files
    themselves where they are still what was ingested, else the stored pixels as PNG.
    """
    from flows.cli.comparing import mistakes

    return mistakes(options)


@_command("""
examples:
  data-to-model diff champion:photos photos-images-finetune-0ab793f7984d
  data-to-model diff data/datasets/raw/photos-1788d55bb02c data/datasets/raw/photos-6b3de3e0edcb --json""")
def diff(options: DiffOptions) -> int:
    """Say what is different in two results or runs, in what their models get right, and why.

    Data: files, or rows of Parquet, that were added, removed, renamed, relabelled, moved to
    another split, or changed, by their digests; then fields of the recipe, code, versions and
    hardware; metrics on the test rows that both predicted, and the rows that got better and worse.
    """
    from flows.cli.comparing import diff

    return diff(options)


@_command("""
Stop it with Ctrl-C: active runs become AwaitingRetry, and the next `make up` resumes them. It also restarts
runs that crashed, each at most three times.
Runs, logs and schedules are kept in PREFECT_HOME (~/.prefect), the server's password in PREFECT_HOME/make-up.env. The
server listens on this machine only, unless --host says otherwise (docs/operating.md).""")
def up(
    host: Annotated[str, typer.Option(help="address to listen on")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=1, max=65534, metavar="N", help="port of server and UI; reports get the next one")
    ] = 4200,
) -> int:
    """Start a Prefect server, register the deployments of prefect.yaml and deployments.yaml, run a worker."""
    from flows.server import up

    return up.main(host, port)


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
    """Mark deployment runs whose process has died as Crashed, and restart crashed ones at most three times."""
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
