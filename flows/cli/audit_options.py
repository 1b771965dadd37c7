"""Options of the command `audit`."""

import dataclasses
from typing import Annotated, Literal

import typer

from flows.cli.options import MirrorOptions, RecipeOptions
from flows.cli.result_options import CopyOptions


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
            help="one training, that of `run`, which judges its validation rows, or with --split its test rows",
        ),
    ] = False
    split: Annotated[
        Literal["test"] | None,
        typer.Option(help="judge only the images of this split (default: all images)"),
    ] = None
