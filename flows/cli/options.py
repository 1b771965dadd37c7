"""Options that commands share: a field of these classes is an option, its type and help what `--help` shows."""

import dataclasses
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias, TypeVar, get_args, get_type_hints

import typer

from storage.exits import NAMED, Storage, parse_csv, parse_folder

Text: TypeAlias = str | None
Model = Annotated[str, typer.Option(metavar="URI", help=NAMED)]
Count = Annotated[int, typer.Option(min=1, metavar="N", help="number of images to list")]
Labels = Annotated[
    Text,
    typer.Option(
        metavar="FILE",
        help="table with the labels of the images in --data, instead of class folders: CSV or Parquet with the columns "
        "file (filename, path, image), relative to --data, label (class), and perhaps split (train or test); other "
        "columns: labels.csv:PATH,LABEL or labels.csv:PATH,LABEL,SPLIT",
    ),
]
RECIPE = "a recipe's name, path.py:function or folder:function"
_Function = TypeVar("_Function", bound=Callable[..., object])
NONE: Any = ()
"""Default of an option that may be repeated."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """Options of every command that makes results."""

    runs: ClassVar[str]
    """The function that gets the options, `module:name`."""
    epilog: ClassVar[str]
    """What follows the options in the help."""
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
            help="number of processes that train and predict; 0: only this process, without Ray, so that breakpoints "
            "work (default: one per GPU, in training at most one for each 64 rows of batch_size; without GPUs one, on "
            "a cluster one per node)",
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
        typer.Option("--dashboard", help="start Ray's dashboard with a local Ray, and report trainings to it"),
    ] = False


def described(options: type[FlowOptions], function: _Function) -> _Function:
    """Describe the parameters of a flow's `function` in its docstring as `options` does, for the UI; return it."""
    hints = get_type_hints(options, include_extras=True)
    helps = [f"    {name}: {get_args(hints[name])[1].help}" for name in inspect.signature(function).parameters]
    function.__doc__ = "\n".join([f"{function.__doc__}\n\nArgs:", *helps])
    return function


@dataclasses.dataclass(frozen=True, kw_only=True)
class RecipeOptions(FlowOptions):
    """Options of every command that trains."""

    recipe: Annotated[
        Text,
        typer.Option(
            metavar="NAME",
            help=f"the model to train and its source: {RECIPE} (default: images-finetune for your own images, else "
            "mnist-sample-resnet18; a deployment's flow has its own)",
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
            help="registered model whose champion the new model competes with: a-z, 0-9 and '-'; the data needs the "
            "champion's image size and at least one of its classes (default: named after the source; for your own "
            "data, after its location)",
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
class TableOptions:
    """Options of every command that writes a table."""

    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=parse_csv, help="also write a CSV table, one line per image")
    ] = None
    excel: Annotated[
        bool, typer.Option("--excel", help="begin the table with the mark by which Excel recognizes UTF-8")
    ] = False


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
