"""Commands on registered models: history, promote, rollback; and gc."""

import datetime
import time
from typing import Annotated

import typer

from flows.cli.storage_commands import Result, app, command, complain, existing_root, result_folder
from storage import access, champions, exits, manifest, reference, terminal
from storage.admin import listing
from storage.admin.gc import Garbage
from storage.exits import Storage
from storage.kinds import CheckpointURI
from storage.manifest import Damaged
from storage.uri import check_name

__all__ = ["app"]

_MOST_SKEW_S = 300
"""Seconds that this machine's clock and the storage's may differ: gc judges by age."""


@command
def history(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="REGISTERED-MODEL", help="show all its decisions: promoted, rejected, unchanged or rollback"
        ),
    ] = None,
    *,
    storage: Storage = "./data",
) -> int:
    """Show the champions, or all decisions about one registered model.

    Each has its time, author and reason; the latest is last.

    Examples:
      data-to-model history mnist
    """
    root = existing_root(storage)
    if name is not None:
        decisions = champions.decisions(root, name.removeprefix("champion:"))
        for decision in decisions:
            terminal.show_lines([f"{decision.number:06d}  {decision.verdict}  {decision.challenger}"])
            terminal.show_lines(f"        {line}" for line in [decision.account, *decision.comparisons])
        terminal.show_lines([f"champion: {(decisions[-1].champion if decisions else None) or 'none'}"])
        return 0
    current_champions, damaged = listing.current_champions(root)
    if not (current_champions or damaged):
        exits.note(f"{root} has no decisions; train a model first: data-to-model run")
    terminal.show_lines(
        terminal.table(
            (name, str(decision.champion), decision.account) if decision else (name, "none", "no model passed the gate")
            for name, decision in current_champions.items()
        )
    )
    return complain(damaged)


@command
def promote(
    uri: Result,
    *,
    storage: Storage = "./data",
    register_as: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="registered model (default: the one that it competed in)"),
    ] = None,
    reason: Annotated[
        str | None, typer.Option(metavar="TEXT", help="why; recorded and shown with the decision")
    ] = None,
) -> int:
    """Make a checkpoint the champion, regardless of the gate.

    Checks all its bytes first. Later runs compare their models with it.

    Examples:
      data-to-model promote data/checkpoints/mnist-resnet18-e2b527dc0150 --reason "fewer 4s taken for 9s"
    """
    name = register_as and check_name(register_as, field="--register-as")
    checkpoint = CheckpointURI(result_folder(uri, storage).uri)
    manifest.load(checkpoint)
    root = reference.root_of(checkpoint)
    if root == checkpoint.parent:
        raise ValueError(
            f"uri: {checkpoint} is not below a storage root; copy it to ROOT/checkpoints/{checkpoint.name}"
        )
    access.check_writable(root)
    name = champions.promote(root, checkpoint, name=name, reason=" ".join((reason or "").split()))
    from tasks.orchestration.tracking import track  # imports what other commands do not need

    track(root, name)
    terminal.show_lines([f"{checkpoint} is now the champion of {name}"])
    return 0


@command
def rollback(
    name: Annotated[str, typer.Argument(metavar="REGISTERED-MODEL", help="as printed by history")],
    *,
    storage: Storage = "./data",
) -> int:
    """Go back to the previous champion.

    Checks all its bytes first. A second rollback goes back one more champion; promote picks any
    checkpoint. Later runs do not promote a model that you rolled back; only promote does.

    Examples:
      data-to-model rollback mnist
    """
    root, name = existing_root(storage), name.removeprefix("champion:")
    champions.decisions(root, name)
    access.check_writable(root)
    decision = champions.rollback(root, name)
    from tasks.orchestration.tracking import track  # imports what other commands do not need

    track(root, name)
    terminal.show_lines([f"{decision.champion} is again the champion of {name} ({decision.reason})"])
    return 0


@command
def gc(
    *,
    storage: Storage = "./data",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="only list what the command would delete")] = False,
    keep_days: Annotated[
        int, typer.Option(metavar="N", min=1, help="keep what is younger than N days, at least 1")
    ] = 14,
) -> int:
    """Delete results that nothing needs and that are older than N days.

    Keeps the registry; every champion with its predictions, evaluations, reports and exports; the
    previous champion; what a run of the last 7 days uses, or used before it failed; and everything
    that any of these was made from.

    Examples:
      data-to-model gc --keep-days 90 --dry-run
    """
    root = existing_root(storage)
    now = access.check_writable(root)
    if (skew_s := abs(time.time() - now)) > _MOST_SKEW_S:
        skew = datetime.timedelta(seconds=round(skew_s))
        raise ValueError(f"--storage: the clocks of {root} and of this machine differ by {skew}; set the wrong one")
    num_items = num_bytes = 0
    try:
        garbage = Garbage(root, keep_days=keep_days, now=now)
        removals = garbage.find()
        for removal in removals if dry_run else garbage.remove(removals):
            verb = "would delete" if dry_run else "deleted"
            terminal.show_lines([f"{verb}  {terminal.size(removal.size):>9}  {removal.uri}  ({removal.why})"])
            num_items, num_bytes = num_items + 1, num_bytes + removal.size
    except Damaged as error:
        raise Damaged(f"{error}; nothing more is deleted until this is fixed") from None
    verb = "Dry run: would delete" if dry_run else "Deleted"
    terminal.show_lines([f"{verb} {terminal.count(num_items, 'item')} ({terminal.size(num_bytes)})"])
    return 0
