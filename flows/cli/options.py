"""Options of the commands: a field of these classes is an option, its type and help what `--help` shows."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, TypeVar, get_args, get_type_hints

import typer

from storage.exits import NAMED, Storage, parse_csv, parse_folder

Text: TypeAlias = str | None
Model = Annotated[str, typer.Option(metavar="URI", help=NAMED)]
Count = Annotated[int, typer.Option(min=1, metavar="N", help="number of images to list")]
RECIPE = "a recipe's name, path.py:function or folder:function"
_Function = TypeVar("_Function", bound=Callable[..., object])
NONE: Any = ()
"""Default of an option that may be repeated."""
_OF_COMMAND = ("as_json", "dashboard", "check", "csv", "excel")
"""Options of the commands that are no parameters of their flows."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """Options of every command that makes results."""

    storage: Storage = "./data"
    as_json: Annotated[
        bool, typer.Option("--json", help="print JSON on stdout and logs on stderr (default: a table)")
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


def described(options: type[FlowOptions], function: _Function) -> _Function:
    """Describe the parameters of a flow's `function` in its docstring as `options` does, for the UI; return it."""
    hints = get_type_hints(options, include_extras=True)
    helps = [f"    {name}: {get_args(hints[name])[1].help}" for name in parameter_names(options)]
    function.__doc__ = "\n".join([f"{function.__doc__}\n\nArgs:", *helps])
    return function


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeOptions(FlowOptions):
    """Options of every command that trains."""

    recipe: Annotated[
        Text,
        typer.Option(
            metavar="NAME",
            help=f"the model to train and its source: {RECIPE} (default: images-finetune with your own images, else "
            "mnist-sample-resnet18, or that of the deployment's flow)",
        ),
    ] = None
    settings: Annotated[
        list[str],
        typer.Option(
            "--set",
            metavar="field=value",
            help="change a field of the recipe (`data-to-model recipes NAME` lists them), such as epochs=5 or "
            "learning_rate=1e-3; repeatable; in a deployment {epochs: 5} (default: the recipe's values)",
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
            "or with train-*.parquet and test-*.parquet; or an existing raw dataset by its URI or name, "
            "such as mnist-1d9802c1c0d9 (default: download the recipe's source)",
        ),
    ] = None
    judge_only: Annotated[
        bool, typer.Option("--judge-only", help="record the decision, but keep the current champion in any case")
    ] = False
    refresh: Annotated[bool, typer.Option("--refresh", help="recompute everything, even if results exist")] = False
    check: Annotated[
        bool,
        typer.Option(
            "--check",
            help="check the setup without running; one line per fact, with --json the plan; exit code 0 or 2",
        ),
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options of every command that writes a table."""

    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=parse_csv, help="also write a CSV table, one line per image")
    ] = None
    excel: Annotated[bool, typer.Option("--excel", help="begin the table with the mark by which Excel knows UTF-8")] = (
        False
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class PredictOptions(TableOptions, FlowOptions):
    """Options of batch prediction."""

    data: Annotated[
        str,
        typer.Option(
            metavar="URI",
            help="URI or name of a dataset, raw or prepared; or new images: a flat or nested folder, a file, "
            "or s3://bucket/prefix, with images or Parquet, with or without labels",
        ),
    ]
    model: Model = "champion"
    split: Annotated[
        Text, typer.Option(metavar="NAME", help="only this split of a dataset, such as test (default: all)")
    ] = None
    min_confidence: Annotated[
        float | None,
        typer.Option(
            metavar="SHARE",
            help="leave the class empty in --csv where its probability is lower, such as 0.92, and count these images "
            "apart; the report says how many images that leaves (default: every image gets a class)",
        ),
    ] = None
    max_distance: Annotated[
        float | None,
        typer.Option(
            metavar="DISTANCE",
            help="leave the class empty in --csv where the image is farther from all training and validation images, "
            "such as 0.4, and count these images apart; the report shows distances (default: every image gets a class)",
        ),
    ] = None
    no_drift: Annotated[
        bool, typer.Option("--no-drift", help="do not compare new images with the test rows of the model")
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ExportOptions(StorageOptions):
    """Options of an export."""

    model: Annotated[str, typer.Argument(metavar="MODEL", help=f"the checkpoint: {NAMED}")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class BackfillOptions(TrainingOptions):
    """Options of a backfill."""

    version: Annotated[
        list[str], typer.Argument(help="name or URI of a raw dataset (default: all of the recipe's source)")
    ] = NONE


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyOptions(TableOptions):
    """Options of every command that lists images."""

    copy_to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=parse_folder,
            help="also copy the images to this folder, empty or new, with rank and classes in their names",
        ),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class NextOptions(CopyOptions, FlowOptions):
    """Options of the list of images to label next."""

    data: Annotated[str, typer.Argument(metavar="FOLDER", help="new images, as `predict --data` takes them")]
    model: Model = "champion"
    count: Count = 50


@dataclasses.dataclass(frozen=True, kw_only=True)
class SimilarOptions(FlowOptions):
    """Options of the list of images like another."""

    data: Annotated[str, typer.Argument(metavar="FILE", help="the image")]
    model: Model = "champion"
    count: Count = 9


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValueOptions(TableOptions, StorageOptions):
    """Options of what training images cost a probe."""

    model: Model = "champion"
    count: Count = 20
    by: Annotated[
        Literal["image", "folder", "camera", "day"],
        typer.Option(help="what is left out at a time; folder: one below the class; day: by the EXIF of your files"),
    ] = "image"


@dataclasses.dataclass(frozen=True, kw_only=True)
class ForgetOptions(FlowOptions):
    """Options of forgetting an image."""

    image: Annotated[
        str, typer.Argument(metavar="FILE", help="the image, outside of the data's folder, or its SHA-256")
    ]
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="list what would be made again and deleted, without doing it")
    ] = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class MistakesOptions(CopyOptions, StorageOptions):
    """Options of the list of mistakes."""

    run: Annotated[
        Text,
        typer.Argument(
            metavar="RUN", help=f"any result of the run: {NAMED} (default: the run whose report was written last)"
        ),
    ] = None
    label: Annotated[
        Text, typer.Option("--class", metavar="CLASS", help="only rows of this class (default: of all classes)")
    ] = None
    prediction: Annotated[
        Text, typer.Option("--as", metavar="CLASS", help="only rows predicted as this class (default: as any)")
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DiffOptions(StorageOptions):
    """Options of the comparison of two results."""

    a: Annotated[str, typer.Argument(metavar="A", help=f"any result of a run, or a dataset: {NAMED}")]
    b: Annotated[str, typer.Argument(metavar="B", help="the same; what is different is said of B against A")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditOptions(CopyOptions, MirrorOptions, RecipeOptions):
    """Options of an audit."""

    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA",
            help="your own images with labels, or a raw dataset, as --data of a run; or a source by its name: mnist",
        ),
    ]
