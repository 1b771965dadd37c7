"""Listing of a storage root as one table: every result with its time, size, test metrics and marks."""

import datetime
from collections.abc import Collection, Iterator, Sequence

from storage import champions, registry, terminal
from storage.admin import catalog
from storage.admin.catalog import Folder
from storage.decision import METRICS, Decision
from storage.kinds import KINDS
from storage.manifest import JSON, Damaged
from storage.statistics import Scores
from storage.uri import URI, Root


def of(root: Root, kinds: Collection[str], champions: Collection[URI]) -> list[JSON]:
    """Describe every result of `kinds` by JSON values, oldest first.

    Each has time, kind, URI, rows, bytes, number of files, test metrics and marks. The marks are `champion` (has the
    name of one of `champions`), `incomplete` (files without a manifest) and `unreadable` (its manifest or folder).
    """
    folders = catalog.read_folders(catalog.list_folders(root, KINDS))
    scores = _test_metrics(folders)
    names = {champion.name for champion in champions}
    return [
        _document(folder, names, scores.get(folder.uri, {}))
        for folder in sorted(folders, key=lambda folder: folder.created)
        if folder.kind in kinds
    ]


def _test_metrics(folders: Sequence[Folder]) -> dict[URI, dict[str, float]]:
    """Return the metrics of each evaluation, its predictions and reports, each model and export, by URI and name.

    A model's metrics are those on the test rows of its own training data, even if it was also evaluated on other rows.
    """
    known = {folder.uri: folder for folder in folders}
    metrics: dict[URI, dict[str, float]] = {}
    for folder in folders:
        if folder.manifest and isinstance(folder.manifest.statistics, Scores):
            metrics[folder.uri] = folder.manifest.statistics.scores()
            if predictions := folder.parents.get("predictions"):
                metrics[predictions] = metrics[folder.uri]
    for uri, folder in known.items():
        if folder.parents.get("evaluation") in metrics:
            metrics[uri] = metrics[folder.parents["evaluation"]]
        model = known.get(folder.parents["checkpoint"]) if folder.kind == "predictions" and uri in metrics else None
        if model and folder.parents.get("dataset") == model.parents.get("prepared"):
            metrics[model.uri] = metrics[uri]
    return metrics


def lines(documents: Sequence[JSON]) -> Iterator[str]:
    header = ("created", "kind", "rows", "files", "size", "accuracy", "balanced", "macro F1", "mark", "name")
    rows = [
        (
            terminal.moment(datetime.datetime.fromisoformat(document["created"])),
            document["kind"],
            "-" if document["rows"] is None else f"{document['rows']:,}",
            f"{document['files']:,}",
            terminal.size(document["bytes"]),
            *("-" if document[name] is None else f"{document[name]:.4f}" for name in METRICS.values()),
            ", ".join(document["marks"]),
            document["uri"],
        )
        for document in documents
    ]
    return terminal.table([header, *rows], right=(2, 3, 4, 5, 6, 7))


def current_champions(root: Root) -> tuple[dict[str, Decision | None], list[str]]:
    """Return for each registered model the decision that made its champion, or none; a line for each damaged one."""
    changes: dict[str, Decision | None] = {}
    damaged = []
    for name in champions.registered_models(root):
        try:
            changes[name] = next(reversed(champions.promotion_stack(registry.history(root, name))), None)
        except Damaged as error:
            damaged.append(str(error))
    return changes, damaged


def _document(folder: Folder, champions: Collection[str], scores: dict[str, float]) -> JSON:
    result = folder.manifest
    marks = {
        "champion": folder.kind == "checkpoint" and folder.uri.name in champions,
        "incomplete": folder.committed is None and not folder.damage,
        "unreadable": bool(folder.damage),
    }
    return {
        "kind": folder.kind,
        "uri": folder.uri,
        "created": folder.created.isoformat(timespec="seconds"),
        "rows": result.rows if result and result.rows else None,
        "bytes": sum(file.size for file in result.files) if result else folder.size,
        "files": len(result.files if result else folder.entries),
        **{name: scores.get(name) for name in METRICS.values()},
        "marks": [mark for mark, holds in marks.items() if holds],
    }
