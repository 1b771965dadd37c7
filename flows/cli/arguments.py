"""Arguments of the command lines: their names, help texts and defaults."""

import argparse
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from storage.exits import refuse
from tasks.jobs import dashboard
from tasks.resources import machine

_EPILOG = """\
examples:
  python flows/pipeline.py                                     run everything, results below ./data
  python flows/pipeline.py                                     again: existing results are reused
  python flows/pipeline.py --set epochs=5 --set seed=1         another training on the same data
  python flows/pipeline.py --storage s3://bucket/prefix        shared storage (AWS_* variables, AWS_ENDPOINT_URL)
  RAY_ADDRESS=http://head:8265 python flows/pipeline.py ...    on a Ray cluster
  python flows/pipeline.py --source ./mnist-files              without internet, from a folder
  python flows/pipeline.py --check ...                         check the setup without running

After an interruption or failure, run the same command again to resume.
exit codes: 0 success (promoted or not), 1 failure, 2 invalid request, 129 terminal closed, 130 interrupted"""


class Parser(argparse.ArgumentParser):
    """Argument parser without abbreviations that reports an invalid request in one line and exits with code 2."""

    has_settings = False
    """Whether there is an option `--set`."""

    def __init__(
        self, *, formatter_class: type[argparse.HelpFormatter] = argparse.RawDescriptionHelpFormatter, **options: Any
    ) -> None:
        super().__init__(formatter_class=formatter_class, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        refuse(f"{message}{self._hint(message)}; see {self.prog} --help")

    def _hint(self, message: str) -> str:
        """Return a hint if an unknown option is named like a field of the recipe."""
        unknown = re.search(r"unrecognized arguments: --([\w-]+)[= ]?(\S*)", message)
        if not (unknown and self.has_settings):
            return ""
        from tasks.learning import recipes

        field = recipes.field_meant(unknown[1].replace("-", "_"))
        return f" (did you mean --set {field}={unknown[2] or '...'}?)" if field else ""


def parser() -> argparse.ArgumentParser:
    """Define the options of the training pipeline."""
    parser = Parser(
        prog="python flows/pipeline.py",
        description="Build a trained, evaluated and promoted model from images: download, ingest,\n"
        "preprocess, train, predict, evaluate, promote, report. Existing results are\nchecked and reused.",
        epilog=_EPILOG,
    )
    add = parser.add_argument
    add_recipe(parser, default="mnist-resnet18, or images-resnet18 with your own images")
    add(
        "--source",
        metavar="URL_OR_DIR",
        action="append",
        default=[],
        help="mirror or folder to try before the data set's own mirrors; repeatable; 'sample': use the bundled sample "
        "(default: the data set's mirrors, or the sample if none can be reached)",
    )
    add("--no-sample", action="store_true", help="fail instead of using the sample if no mirror can be reached")
    retry = (
        "how long to retry if no mirror can be reached; 0: use the sample at once, or fail if the recipe has none or "
        "--source is given"
    )
    _add_minutes(parser, "--patience", 0, retry)
    add(
        "--data",
        metavar="URI",
        help="your own images: a folder or s3://bucket/prefix with train/<class>/*.png (jpg, ...) and test/<class>/"
        "..., with only <class>/*.png, of which a fifth become test rows (--set test_fraction=0.2), or with "
        "train-*.parquet and test-*.parquet; or the URI of an existing raw dataset, such as "
        "data/datasets/raw/mnist-1d9802c1c0d9 (default: download the recipe's data set)",
    )
    add("--refresh", action="store_true", help="recompute everything, even if results exist (default: reuse them)")
    add("--check", action="store_true", help="check the setup without running; one line per check; exit code 0 or 2")
    add_shared(parser)
    return parser


def parsed(parser: argparse.ArgumentParser, argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line; set the dashboard and the cores for this process and its children."""
    arguments = parser.parse_args(argv)
    dashboard.choose(on=arguments.dashboard)
    try:
        dashboard.is_on()
    except ValueError as error:
        parser.error(str(error))
    machine.choose(arguments.cores)
    return arguments


def add_recipe(parser: Parser, *, default: str) -> None:
    """Add the options of a training; `default` is the help text's description of the default recipe."""
    parser.has_settings = True
    add = parser.add_argument
    add(
        "--recipe",
        metavar="NAME",
        help=f"the model and data set to train: a name, or path.py:function (default: {default})",
    )
    add(
        "--set",
        metavar="field=value",
        dest="settings",
        action="append",
        default=[],
        help="change a field of the recipe (docs/cli.md lists them), such as epochs=5, precision=fp32 or "
        "learning_rate=1e-3; repeatable; step=graph is experimental (default: the recipe's values)",
    )
    add(
        "--championship",
        metavar="NAME",
        help="name of the championship to compete in: a-z, 0-9 and '-' (default: named after the data set; for your "
        "own data, after its location)",
    )
    stall = "restart a training worker without progress for this long; also the longest wait for a cluster to add nodes"
    _add_minutes(parser, "--stall", 10, stall)


def add_shared(
    parser: argparse.ArgumentParser,
    *,
    work: str = "train and predict",
    gpus: str = ", in training at most one for each 64 rows of batch_size",
    printed: str = "one JSON document on stdout and logs on stderr (default: a table)",
) -> None:
    """Add the options that all commands share; the texts describe `--workers` and `--json`."""
    add = parser.add_argument
    add(
        "--storage",
        metavar="URI",
        default=os.environ.get("PIPELINE_STORAGE", "./data"),
        help="storage root for all results: a folder or s3://bucket/prefix (default: $PIPELINE_STORAGE or ./data)",
    )
    add(
        "--workers",
        metavar="N",
        type=_workers,
        help=f"number of processes that {work}; 0: only this process, without Ray, so that breakpoints work "
        f"(default: one per GPU{gpus}; without GPUs one, on a cluster one per node)",
    )
    add(
        "--cores",
        metavar="N",
        type=int,
        help="number of this machine's cores to use, leaving the rest to other runs; not with RAY_ADDRESS "
        "(default: $PIPELINE_CORES, or all cores, with runs taking turns)",
    )
    _add_minutes(parser, "--deadline", 24 * 60, "abort a stage that takes longer")
    add(
        "--dashboard",
        action="store_true",
        help="start Ray's dashboard with a local Ray, and report trainings to it (default: $PIPELINE_DASHBOARD or off)",
    )
    add("--json", action="store_true", help=f"print {printed}")


def _add_minutes(parser: argparse.ArgumentParser, option: str, default: float, what: str) -> None:
    told = f"{what} (default: %(default)s)"
    parser.add_argument(option, metavar="MINUTES", type=float, default=default, help=told)


def _workers(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        advice = "of MIN:MAX use the number that the cluster has at any time"
        raise argparse.ArgumentTypeError(f"must be one whole number, got {text!r}; {advice}") from None


def predict_parser() -> argparse.ArgumentParser:
    """Define the options of batch prediction."""
    parser = Parser(
        prog="python flows/predict.py",
        description="Predict every row of a dataset, or every picture of a folder, exactly once, with or without "
        "labels, and write Parquet. New pictures are resized as in training and stored as a raw dataset below "
        "--storage, named after their content, so that each prediction can be traced to the checksum of its file.",
        formatter_class=argparse.HelpFormatter,
    )
    add = parser.add_argument
    add(
        "--model",
        metavar="URI",
        default="champion",
        help="URI of a checkpoint; or 'champion': for a dataset, the champion of its data set; for new pictures, that "
        "of their folder, else the only one, or the only one trained on own images; or 'champion:NAME': that of "
        "championship NAME (default: %(default)s)",
    )
    add(
        "--dataset",
        metavar="URI",
        required=True,
        help="a dataset, raw or prepared; or new pictures: a flat or nested folder, a file, or s3://bucket/prefix, "
        "with images or Parquet, with or without labels",
    )
    add("--split", metavar="NAME", help="only this split of a dataset, such as test (default: all)")
    table = "also write a CSV table, one line per row: file or id, label, class, probability, or the reason for none"
    add("--csv", metavar="FILE", type=_csv_file, help=f"{table} (default: none)")
    add_shared(parser, work="predict", gpus="")
    return parser


def _csv_file(value: str) -> Path:
    """Return the path of a file that can be written."""
    path = Path(value).expanduser().absolute()
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"must be a file, got the folder {value!r}; add a name")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {path.parent} does not exist; create it, or choose another file")
    if not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"the folder {path.parent} is not writable; choose another file")
    return path
