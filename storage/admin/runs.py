"""Runs as rows, one for each report: what a run changed, its metrics, its decision, and what it took."""

import datetime
from collections.abc import Iterator, Mapping, Sequence

from storage import files, terminal
from storage.admin import catalog, listing
from storage.admin.catalog import Folder
from storage.decision import METRICS
from storage.kinds import REPORT, CheckpointURI
from storage.manifest import JSON
from storage.process import in_threads
from storage.uri import Root


def of(root: Root) -> tuple[list[JSON], list[str]]:
    """Describe every run by JSON values, oldest first; also return a line for each damaged report or registered model.

    A row says what the manifest of the run's report recorded, and whether its model is the champion now.
    """
    decisions, damaged = listing.current_champions(root)
    current = {name: decision.champion for name, decision in decisions.items() if decision}
    shelf = root.child(REPORT.folder)
    places = [shelf.child(name) for name in files.children(shelf)]
    folders = list(in_threads(lambda uri: catalog.find(uri, with_files=False), places, threads=catalog.THREADS))
    damaged += [folder.damage for folder in folders if folder.damage]
    rows = [_row(folder, current) for folder in folders if folder.manifest]
    return sorted(rows, key=lambda row: (row["created"], row["uri"])), damaged


def lines(rows: Sequence[JSON]) -> Iterator[str]:
    middle = ("accuracy", "balanced", "macro F1", "seconds")
    header = ("created", "registered model", "recipe", "changed", *middle, "mark", "run")
    cells = [
        (
            terminal.moment(datetime.datetime.fromisoformat(row["created"])),
            row["registered_model"],
            row["recipe"],
            changes_as_text(row["changes"]) or "-",
            *("-" if row[name] is None else f"{row[name]:.4f}" for name in METRICS.values()),
            "-" if row["seconds"] is None else f"{row['seconds']:,.1f}",
            mark(row),
            row["uri"],
        )
        for row in rows
    ]
    return terminal.table([header, *cells], right=range(4, 8))


def changes_as_text(changes: Mapping[str, object]) -> str:
    """Format changed fields as a user types them after `--set`: `epochs=5 seed=1`."""
    return " ".join(f"{name}={value}" for name, value in changes.items())


def mark(row: JSON) -> str:
    """Return what became of a run's model: `champion` now, `promoted` once, or nothing."""
    return "champion" if row["champion"] else "promoted" if row["promoted"] else ""


def _row(folder: Folder, current: Mapping[str, CheckpointURI | None]) -> JSON:
    assert folder.manifest
    recorded, decision = folder.manifest.statistics_of(REPORT), folder.manifest.parameters.get("decision", {})
    metrics = decision.get("metrics", {}).get("challenger", {})
    champion, checkpoint = current.get(recorded.registered_model), folder.parents.get("checkpoint")
    return {
        "uri": folder.uri,
        "created": folder.created.isoformat(timespec="seconds"),
        **vars(recorded),
        **{metric: metrics.get(metric) for metric in METRICS.values()},
        "promoted": decision.get("promoted", False),
        "champion": bool(champion and checkpoint and champion.name == checkpoint.name),
        "reason": decision.get("reason", ""),
        **{role: folder.parents.get(role) for role in REPORT.parents},
    }
