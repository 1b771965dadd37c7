"""Options of the commands that list images or compare results, as in `options.py`."""

import dataclasses
import os
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import MirrorOptions, RecipeOptions, StorageOptions, Text, parse_csv


def parse_folder(text: str) -> Path:
    """Return the path of a folder that is empty or can be created."""
    path = Path(text).expanduser().absolute()
    if path.exists() and not (path.is_dir() and not any(path.iterdir())):
        raise typer.BadParameter(f"must be an empty or a new folder, got {text!r}; choose another")
    if not path.exists() and not os.access(path.parent, os.W_OK):
        raise typer.BadParameter(f"the folder {path.parent} does not exist or is not writable; choose another")
    return path


@dataclasses.dataclass(frozen=True, kw_only=True)
class CopyOptions:
    """Options of every command that lists images."""

    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=parse_csv, help="also write the list to a CSV table")
    ] = None
    copy_to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=parse_folder,
            help="also copy the images to this folder, empty or new, with rank and classes in their names",
        ),
    ] = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class MistakesOptions(CopyOptions, StorageOptions):
    """Options of the list of mistakes."""

    run: Annotated[
        Text,
        typer.Argument(
            metavar="RUN",
            help="URI or name of any result of a run; or 'champion:NAME': that of registered model NAME (default: the "
            "run whose report was written last)",
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

    a: Annotated[
        str,
        typer.Argument(
            metavar="A", help="URI or name of any result, or of any result of a run; or 'champion:NAME', 'champion'"
        ),
    ]
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
    folds: Annotated[
        int,
        typer.Option(
            metavar="N",
            min=2,
            max=10,
            help="number of trainings, 2 to 10; each judges the images that it did not see",
        ),
    ] = 5
    fast: Annotated[
        bool,
        typer.Option(
            "--fast",
            help="one training, that of `run`, which judges its validation rows",
        ),
    ] = False
