"""Commands that compare what happened: history of a registered model, and runs side by side."""

from typing import Annotated

import typer

from storage import champions, exits
from storage.admin import format, listing
from storage.admin.commands import (
    Csv,
    Json,
    Sort,
    Storage,
    app,
    command,
    complain,
    existing_root,
    show_lines,
    show_runs,
)

__all__ = ["app"]


@command
def history(
    name: Annotated[
        str | None, typer.Argument(metavar="REGISTERED-MODEL", help="print all its decisions, the latest last")
    ] = None,
    *,
    storage: Storage = "./data",
) -> int:
    """Print the current champions, or every decision about one registered model.

    Without a name, prints one line for each registered model: the champion, since when, who
    decided and why. With one, prints all its decisions, the latest last: promoted, rejected
    or rollback.

    Example:
      data-to-model history mnist
    """
    root = existing_root(storage)
    if name is not None:
        decisions = champions.decisions(root, name)
        for decision in decisions:
            compared = [f"compared with the {role}: {text}" for role, text in decision.differences.items()]
            show_lines([f"{decision.number:06d}  {decision.verdict}  {decision.challenger}"])
            show_lines(f"        {line}" for line in [format.decided(decision), *compared])
        show_lines([f"champion: {(decisions[-1].champion if decisions else None) or 'none'}"])
        return 0
    current_champions, damaged = listing.current_champions(root)
    if not (current_champions or damaged):
        exits.note(f"{root} has no decisions; run the pipeline first")
    show_lines(
        format.table(
            (name, str(decision.champion), format.decided(decision))
            if decision
            else (name, "none", "no model passed the gate")
            for name, decision in current_champions.items()
        )
    )
    return complain(damaged)


@command
def compare(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN...",
            help="as printed by ls runs: name or URI of a report, or of the checkpoint, predictions or evaluation "
            "of a run; or champion:NAME",
        ),
    ],
    *,
    storage: Storage = "./data",
    sort: Sort = None,
    csv: Csv = None,
    as_json: Json = False,
) -> int:
    """Print runs side by side, with a column for each setting in which they differ.

    Otherwise the columns are those of ls runs, and the order is that of the command line.

    Example:
      data-to-model compare champion:mnist data/checkpoints/mnist-resnet18-21ce53ad4667
    """
    return show_runs(existing_root(storage), runs, sort=sort, csv=csv, as_json=as_json)
