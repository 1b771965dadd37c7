"""Options of the command `audit`."""

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.options import MirrorOptions, RecipeOptions, parse_csv
from flows.cli.result_options import parse_folder


@dataclasses.dataclass(frozen=True, kw_only=True)
class AuditOptions(MirrorOptions, RecipeOptions):
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
        typer.Option("--fast", help="one training, that of `run`, which judges its validation rows (default: all)"),
    ] = False
    csv: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=parse_csv, help="also write the suspects to a CSV table")
    ] = None
    copy_to: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            parser=parse_folder,
            help="also copy the suspects to this folder, new or empty, with rank and classes in their names",
        ),
    ] = None
