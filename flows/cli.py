"""The command line of the pipeline: checks everything that can be checked first, then runs the flow."""

import argparse
import contextlib
import json
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from flows import PROJECT
from flows.checks import Told, checked
from tasks.jobs import dashboard
from tasks.learning.imports import quickly

_EPILOG = """\
examples:
  python flows/pipeline.py                                     everything, results below ./data
  python flows/pipeline.py                                     again: what is done already is found, not redone
  python flows/pipeline.py --set epochs=5 --set seed=1         another training on the same data
  python flows/pipeline.py --storage s3://bucket/prefix        shared storage (AWS_* variables, AWS_ENDPOINT_URL)
  RAY_ADDRESS=http://head:8265 python flows/pipeline.py ...    on a Ray cluster
  python flows/pipeline.py --source ./mnist-files              without internet, from a folder
  python flows/pipeline.py --check ...                         only say whether this would run

After any accident the same command goes on where it stopped.
exit codes: 0 done (promoted or not), 1 it failed, 2 the request was wrong, 130 interrupted"""


INTERRUPTED = 130
"""Exit code after Ctrl-C."""


class Parser(argparse.ArgumentParser):
    """Ends a wrong request with one line and exit code 2."""

    def error(self, message: str) -> NoReturn:
        fail(message, code=2)


def parser() -> argparse.ArgumentParser:
    """The options and what they mean."""
    parser = Parser(
        prog="python flows/pipeline.py",
        description="From images to a trained, evaluated and promoted model: download, ingest, preprocess, train, "
        "predict, evaluate, promote, report. Results are found and verified when they are there already.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add_recipe(parser, default="mnist-resnet18, or images-resnet18 for images of your own")
    add(
        "--source",
        metavar="URL_OR_DIR",
        action="append",
        default=[],
        help="mirror or folder to try before the data set's own; may be repeated; 'sample' takes the sample that comes "
        "with the project (default: the data set's mirrors, and the sample when none can be reached)",
    )
    add("--no-sample", action="store_true", help="fail rather than go on with the sample (default: go on)")
    add(
        "--patience",
        metavar="MINUTES",
        type=float,
        default=0,
        help="retry for this long while no mirror can be reached, then fail; 0: use the sample at once (default: "
        "%(default)s)",
    )
    add(
        "--data",
        metavar="URI",
        help="images of your own: a folder or s3://bucket/prefix with train/<class>/*.png (jpg, ...) and test/<class>/"
        "..., or with train-*.parquet and test-*.parquet; or a raw dataset that is there already, such as "
        "data/datasets/raw/mnist-0164ad4b8b70 (default: the recipe's data set, downloaded)",
    )
    add("--refresh", action="store_true", help="do everything once more, even if its result is there (default: no)")
    add(
        "--check",
        action="store_true",
        help="say in a line each what is fine and what would refuse the run, and stop: exit code 0 or 2 (default: run)",
    )
    add_shared(parser)
    return parser


def add_recipe(parser: argparse.ArgumentParser, *, default: str) -> None:
    """The options of a training; `default` says in words which recipe is taken for those who name none."""
    add = parser.add_argument
    add("--recipe", metavar="NAME", help=f"what to train on what, by name or as path.py:function (default: {default})")
    add(
        "--set",
        metavar="field=value",
        dest="settings",
        action="append",
        default=[],
        help="change a field of the recipe, such as epochs=5, precision=fp32 or learning_rate=1e-3; may be repeated "
        "(default: as the recipe says)",
    )
    add(
        "--stall",
        metavar="MINUTES",
        type=float,
        default=10,
        help="start a training worker again that makes no progress for this long (default: %(default)s)",
    )


def add_shared(parser: argparse.ArgumentParser) -> None:
    """The options that every command has."""
    add = parser.add_argument
    add(
        "--storage",
        metavar="URI",
        default=os.environ.get("PIPELINE_STORAGE", "./data"),
        help="where all results lie: a folder or s3://bucket/prefix (default: $PIPELINE_STORAGE or ./data)",
    )
    add(
        "--workers",
        metavar="N",
        type=_workers,
        help="processes that train and predict; 0: this one, without Ray: breakpoints work; MIN:MAX: as many as the "
        "cluster has at the time (default: as many as there are GPUs, else one per machine)",
    )
    add(
        "--deadline",
        metavar="MINUTES",
        type=float,
        default=24 * 60,
        help="give up a stage that takes longer (default: %(default)s)",
    )
    add(
        "--dashboard",
        choices=dashboard.KINDS,
        help="dashboard of a local Ray; full adds Ray Data, Ray Train's state and profiling, and uses more of the "
        "machine (default: $PIPELINE_DASHBOARD or trimmed)",
    )
    add("--json", action="store_true", help="print one JSON document on stdout and logs on stderr (default: a table)")


def _workers(text: str) -> int | str:
    try:
        return text if ":" in text else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"it must be a whole number or MIN:MAX, got {text!r}") from None


def main(argv: Sequence[str] | None = None) -> int:
    """Run the pipeline, or only its checks, as the command line says.

    The exit code is 0, 1 (failed), 2 (wrong request) or 130.
    """
    arguments = parser().parse_args(argv)
    dashboard.choose(arguments.dashboard)
    if arguments.check:
        return guarded(lambda: _told(arguments))

    def work() -> int:
        planned = _requested(checked, arguments)
        needs = {"start_ray": planned.needs_ray, "downloads": planned.downloads}
        return run("pipeline", planned.request, as_json=arguments.json, **needs)

    return guarded(work)


def _told(arguments: argparse.Namespace) -> int:
    look = Told(as_json=arguments.json)
    checked(arguments, look)
    from flows.server import check_api

    look("Prefect", check_api)
    return look.end()


def predict_parser() -> argparse.ArgumentParser:
    """The options of batch prediction and what they mean."""
    parser = Parser(
        prog="python flows/predict.py",
        description="Predict every row of a dataset exactly once, labels or not, and write Parquet.",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add(
        "--model",
        metavar="URI",
        default="champion",
        help="a checkpoint, or 'champion': the one in charge of the dataset's data set, or 'champion:NAME' of another "
        "(default: %(default)s)",
    )
    add("--dataset", metavar="URI", required=True, help="a dataset, raw or prepared")
    add("--split", metavar="NAME", help="only this split, such as test (default: all)")
    add_shared(parser)
    return parser


def main_predict(argv: Sequence[str] | None = None) -> int:
    """Run batch prediction as the command line says; the exit code is 0, 1 (failed), 2 (wrong request) or 130."""
    arguments = predict_parser().parse_args(argv)
    dashboard.choose(arguments.dashboard)
    from tasks import batch, capacity, preflight

    request = {
        "dataset": arguments.dataset,
        "model": arguments.model,
        "storage": arguments.storage,
        "split": arguments.split,
        "workers": arguments.workers,
        "deadline_minutes": arguments.deadline,
    }

    def work() -> int:
        _requested(capacity.check_workers, arguments.workers)
        resolved = _requested(batch.resolve, **request)
        needs_ray = arguments.workers != 0 and not resolved.is_done()
        if needs_ray:
            _requested(preflight.check_nodes, resolved.root, arguments.workers)
        return run("predict", request, as_json=arguments.json, start_ray=needs_ray)

    return guarded(work)


def _requested(check: Any, *arguments: Any, **keywords: Any) -> Any:
    """What `check` returns; a wrong request ends in one line and exit code 2."""
    try:
        return check(*arguments, **keywords)
    except ValueError as error:
        fail(str(error), code=2)


def run(name: str, request: dict[str, Any], *, as_json: bool, start_ray: bool = False, downloads: bool = False) -> int:
    """Run a flow with a person watching, and show the outcome.

    What takes seconds to start does so side by side: Ray for `start_ray`, which takes longest, Prefect with its server,
    and what `downloads` needs.
    """
    from tasks.cluster import starting

    os.environ.setdefault("DO_NOT_TRACK", "1")
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    # On a server that is not its own, a run that dies is seen to have ended as those of deployments are.
    os.environ.setdefault("PREFECT_FLOWS_HEARTBEAT_FREQUENCY", "30")
    with starting(wanted=start_ray):
        with quickly():
            from prefect import tags
            from rich.console import Console

            from flows import console
            from flows.server import check_api, own_server
            from tasks.learning import sources

        _requested(check_api)

        # A bar would be drawn over the prompt of a debugger.
        narrator = console.Narrator(Console(stderr=True), has_bar=request["workers"] != 0)

        def meanwhile() -> None:
            with quickly():
                _flow(name, request)
                if downloads:
                    sources.import_what_fetching_needs()

        # A tag makes every task ask for concurrency slots, which a busy SQLite answers with "again in two seconds".
        # Only on a server that outlives this run is there anybody who looks for it.
        with own_server(meanwhile) as is_own, contextlib.nullcontext() if is_own else tags(PROJECT):
            flow = _flow(name, request)
            console.attach(narrator)
            try:
                summary = flow(**request)
            finally:
                narrator.stop()
    if as_json:
        print(json.dumps(summary, indent=1))
    else:
        console.show(summary, Console() if sys.stdout.isatty() else Console(width=200))
    return 0


def _flow(name: str, request: dict[str, Any]) -> Any:
    if name == "predict":
        from flows.predict import predict

        return predict
    from flows import pipeline
    from tasks.learning import datasets, recipes

    data = request["settings"].get("data") or recipes.load(request["recipe"]).data
    siblings = {"fashion-mnist": pipeline.fashion_mnist, "cifar10": pipeline.cifar10, datasets.OWN: pipeline.images}
    return siblings.get(data, pipeline.mnist)


def guarded(work: Any) -> int:
    """The exit code of `work`, with one line on stderr when it fails or is interrupted."""
    try:
        return int(work())
    except KeyboardInterrupt:
        note("interrupted; the same command goes on where this one stopped")
        return INTERRUPTED
    except Exception as error:
        if os.environ.get("PIPELINE_TRACEBACK"):
            raise
        lines = str(error).strip().splitlines() or [""]
        ours = type(error).__module__.partition(".")[0] in ("flows", "storage", "tasks", "__main__")
        note(f"error: {lines[0]}" if ours else f"error: {type(error).__name__}: {lines[0]}")
        for line in lines[1:]:
            note(line)
        if not getattr(error, "permanent", False):
            note("the same command goes on where this one stopped; PIPELINE_TRACEBACK=1 shows where it failed")
        return 1


def note(text: str) -> None:
    """Say something on stderr."""
    print(text, file=sys.stderr, flush=True)


def fail(text: str, *, code: int) -> NoReturn:
    """End with one line on stderr."""
    note(f"error: {' '.join(text.split())}")
    raise SystemExit(code)
