"""Options of the commands: a field of these classes is an option, its type and help what `--help` shows."""

import dataclasses
import os
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import typer

Text: TypeAlias = str | None
NONE: Any = ()
"""Default of an option that may be repeated."""
_OF_COMMAND = ("as_json", "dashboard", "check", "csv")
"""Options of the commands that are no parameters of their flows."""


def parse_csv(text: str) -> Path:
    """Return the path of a file that can be written."""
    path = Path(text).expanduser().resolve()
    if path.is_dir():
        raise typer.BadParameter(f"must be a file, got the folder {text!r}; add a name")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"the folder {path.parent} does not exist; create it, or choose another file")
    if not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"the folder {path.parent} is not writable; choose another file")
    return path


@dataclasses.dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """Options of every command that makes results."""

    storage: Annotated[
        str,
        typer.Option(
            metavar="URI",
            envvar="PIPELINE_STORAGE",
            help="storage root for all results: a folder or s3://bucket/prefix",
        ),
    ] = "./data"
    as_json: Annotated[
        bool,
        typer.Option("--json", help="print JSON on stdout and logs on stderr (default: a table)"),
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class FlowOptions(StorageOptions):
    """Options of every command that runs a flow."""

    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            min=0,
            help="number of processes that do the work; 0: only this process, without Ray, so that breakpoints work "
            "(default: one per GPU, in training at most one for each 64 rows of batch_size; without GPUs one, on a "
            "cluster one per node)",
        ),
    ] = None
    cores: Annotated[
        int | None,
        typer.Option(
            metavar="N",
            help="number of this machine's cores to use, leaving the rest to other runs; not with RAY_ADDRESS "
            "(default: all cores, with runs taking turns)",
        ),
    ] = None
    stage_timeout: Annotated[
        str, typer.Option(metavar="TIME", help="abort a stage that takes longer: 30s, 10m, 2h, 1d")
    ] = "24h"
    dashboard: Annotated[
        bool,
        typer.Option(
            "--dashboard", help="start Ray's dashboard with a local Ray, and report trainings to it (default: off)"
        ),
    ] = False


def parameter_names(options: FlowOptions | type[FlowOptions]) -> list[str]:
    """Return the names of the options that are parameters of the flow."""
    return [field.name for field in dataclasses.fields(options) if field.name not in _OF_COMMAND]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeOptions(FlowOptions):
    """Options of every command that trains."""

    recipe: Annotated[
        Text,
        typer.Option(
            metavar="NAME",
            help="the model to train and its source: a name, path.py:function or folder:function (default: "
            "mnist-sample-resnet18, or images-finetune with your own images)",
        ),
    ] = None
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="field=value",
            help="change a field of the recipe (docs/cli.md lists them), such as epochs=5, precision=fp32 or "
            "learning_rate=1e-3; repeatable (default: the recipe's values)",
        ),
    ] = NONE
    stall_timeout: Annotated[
        str,
        typer.Option(
            metavar="TIME",
            help="restart a training worker without progress for this long; also the longest wait for a cluster to "
            "add nodes",
        ),
    ] = "10m"


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainingOptions(RecipeOptions):
    """Options of every command whose models compete with a champion."""

    register_as: Annotated[
        Text,
        typer.Option(
            metavar="NAME",
            help="registered model whose champion the new model competes with: a-z, 0-9 and '-' (default: named "
            "after the source; for your own data, after its location)",
        ),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MirrorOptions:
    """Options of every command that downloads."""

    mirror: Annotated[
        list[str],
        typer.Option(
            metavar="URL_OR_DIR",
            help="mirror or folder to try before the published ones; repeatable (default: the published mirrors)",
        ),
    ] = NONE


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunOptions(MirrorOptions, TrainingOptions):
    """Options of the whole pipeline."""

    data: Annotated[
        Text,
        typer.Option(
            metavar="URI",
            help="your own images: a folder or s3://bucket/prefix with train/<class>/*.png (jpg, ...) and "
            "test/<class>/..., with only <class>/*.png, of which a fifth become test rows (--set test_fraction=0.2), "
            "or with train-*.parquet and test-*.parquet; or the URI of an existing raw dataset, such as "
            "data/datasets/raw/mnist-1d9802c1c0d9 (default: download the recipe's source)",
        ),
    ] = None
    judge_only: Annotated[
        bool, typer.Option("--judge-only", help="record the decision, but keep the current champion in any case")
    ] = False
    refresh: Annotated[bool, typer.Option("--refresh", help="recompute everything, even if results exist")] = False
    check: Annotated[
        bool,
        typer.Option("--check", help="check the setup without running; one line per check; exit code 0 or 2"),
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictOptions(FlowOptions):
    """Options of batch prediction."""

    data: Annotated[
        str,
        typer.Option(
            metavar="URI",
            help="a dataset, raw or prepared; or new images: a flat or nested folder, a file, or s3://bucket/prefix, "
            "with images or Parquet, with or without labels",
        ),
    ]
    model: Annotated[
        str,
        typer.Option(
            metavar="URI",
            help="URI of a checkpoint; or 'champion': for a dataset, the champion of its source; for new images, "
            "that of their folder, else the only one, or the only one trained on own images; or 'champion:NAME': that "
            "of registered model NAME",
        ),
    ] = "champion"
    split: Annotated[
        Text, typer.Option(metavar="NAME", help="only this split of a dataset, such as test (default: all)")
    ] = None
    min_confidence: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="leave the class empty where its probability is lower, such as 0.92; the report says how many images "
            "that leaves (default: every image gets a class)",
        ),
    ] = None
    csv: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            parser=parse_csv,
            help="also write a CSV table, one line per row: file or id, label, class, probability, or the reason for "
            "none",
        ),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(StorageOptions):
    """Options of an export."""

    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="URI of a checkpoint; or 'champion:NAME': that of registered model NAME; or 'champion': the only one",
        ),
    ]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackfillOptions(TrainingOptions):
    """Options of a backfill."""

    version: Annotated[
        list[str], typer.Argument(help="name or URI of a raw dataset (default: all of the recipe's source)")
    ] = NONE
