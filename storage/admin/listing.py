"""Listing of a storage root as tables: every result with its time, size, test metrics and marks; unfinished work."""

import contextlib
import datetime
import json
import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, NamedTuple

from storage import champions, files, manifest
from storage.admin import catalog, format
from storage.admin.catalog import SCRATCH, Folder
from storage.decision import METRICS, Decision
from storage.kinds import KINDS
from storage.manifest import Damaged
from storage.uri import URI, Root

_SPEC = re.compile(r"([a-z]+)-[0-9a-f]{64}\.json")
"""Name of a job's spec: its stage, and the SHA-256 of its content."""
_EPOCH = re.compile(r"attempt-\d+/epoch-(\d+)/checkpoint\.json")
"""Path of the file that is written last of an epoch's checkpoint."""


class Unfinished(NamedTuple):
    """One run folder whose result is not committed."""

    changed: float
    """Time of the last write to a file in it: seconds since 1970."""
    cells: tuple[str, ...]
    """The word `unfinished`, stage, epochs, time of the write, URI."""


def of(root: Root, kinds: Collection[str], champions: Collection[URI]) -> list[dict[str, Any]]:
    """Describe every result of `kinds` by JSON values, oldest first.

    Each has time, kind, URI, rows, bytes, number of files, test metrics and marks. The marks are `champion` (has the
    name of one of `champions`), `incomplete` (files without a manifest) and `damaged` (unreadable manifest or folder).
    """
    needed = {*kinds, *(other for kind in kinds for other in KINDS[kind].accuracy_from)}
    results = catalog.read_folders(catalog.list_folders(root, needed))
    scores = test_metrics(results)
    folders = sorted((folder for folder in results if folder.kind in kinds), key=lambda folder: folder.created)
    names = {champion.name for champion in champions}
    return [_document(folder, names, scores.get(folder.uri, {})) for folder in folders]


def test_metrics(folders: Sequence[Folder]) -> dict[URI, dict[str, float]]:
    """Return the metrics of each evaluation, its predictions and reports, each model and export, by URI and name.

    A model's metrics are those on the test rows of its own training data, even if it was also evaluated on other rows.
    """
    known = {folder.uri: folder for folder in folders}
    metrics: dict[URI, dict[str, float]] = {}
    for folder in folders:
        if folder.kind in ("evaluation", "export") and folder.manifest:
            statistics = folder.manifest.statistics
            metrics[folder.uri] = {name: statistics[name] for name in METRICS.values() if name in statistics}
            if predictions := folder.parents.get("predictions"):
                metrics[predictions] = metrics[folder.uri]
    for uri, folder in known.items():
        if folder.parents.get("evaluation") in metrics:
            metrics[uri] = metrics[folder.parents["evaluation"]]
        model = known.get(folder.parents["checkpoint"]) if folder.kind == "predictions" and uri in metrics else None
        if model and folder.parents.get("dataset") == model.parents.get("prepared"):
            metrics[model.uri] = metrics[uri]
    return metrics


def lines(documents: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Format what `of` returned as a table."""
    header = ("created", "kind", "rows", "files", "size", "accuracy", "balanced", "macro F1", "mark", "name")
    rows = [
        (
            format.moment(datetime.datetime.fromisoformat(document["created"])),
            document["kind"],
            "-" if document["rows"] is None else f"{document['rows']:,}",
            f"{document['files']:,}",
            format.size(document["bytes"]),
            *("-" if document[name] is None else f"{document[name]:.4f}" for name in METRICS.values()),
            ", ".join(document["marks"]),
            document["uri"],
        )
        for document in documents
    ]
    return format.table([header, *rows], right=(2, 3, 4, 5, 6, 7))


def current_champions(root: Root) -> tuple[dict[str, Decision | None], list[str]]:
    """Return for each registered model the decision that made its champion, or none; a line for each damaged one."""
    changes: dict[str, Decision | None] = {}
    damaged = []
    for name in champions.registered_models(root):
        try:
            changes[name] = champions.last_champion_change(champions.decisions(root, name))
        except Damaged as error:
            damaged.append(str(error))
    return changes, damaged


def _document(folder: Folder, champions: Collection[str], scores: dict[str, float]) -> dict[str, Any]:
    result = folder.manifest
    marks = {
        "champion": folder.kind == "checkpoint" and folder.uri.name in champions,
        "incomplete": folder.committed is None and not folder.damage,
        "damaged": bool(folder.damage),
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


def unfinished(root: Root, kinds: Collection[str]) -> list[Unfinished]:
    """Return the unfinished results of `kinds`, the latest last."""
    folders = catalog.read_folders(catalog.list_folders(root, [SCRATCH]))
    rows = catalog.map_in_threads(lambda folder: _unfinished(root, folder, kinds), folders)
    return sorted(filter(None, rows))


def unfinished_lines(unfinished: Sequence[Unfinished]) -> Iterator[str]:
    """Yield a table of unfinished results and, if there is one, a hint what to do."""
    yield from format.table(each.cells for each in unfinished)
    if unfinished:
        yield (
            "unfinished: no result yet; if no run is working on it, run the same command again to resume; gc deletes "
            "the files once they are old"
        )


def _unfinished(root: Root, folder: Folder, kinds: Collection[str]) -> Unfinished | None:
    paths = {entry.path for entry in folder.entries}
    specs = {match[1]: match[0] for match in map(_SPEC.fullmatch, paths) if match}
    kind = next((kind for kind in KINDS.values() if kind.stage in specs), None)
    if kind is None or kind.name not in kinds:
        return None
    target = kind.place(root, folder.uri.name)
    if manifest.is_committed(target):
        return None
    done = max((int(match[1]) for match in map(_EPOCH.fullmatch, paths) if match), default=0)
    progress = ""
    with contextlib.suppress(FileNotFoundError):  # the run has ended meanwhile
        if "train" in specs:
            recipe = json.loads(files.read(folder.uri.child(specs["train"])))["recipe"]
            progress = f"{done} of {recipe['training']['epochs']} epochs done"
    moment = format.moment(datetime.datetime.fromtimestamp(folder.changed, datetime.UTC))
    return Unfinished(folder.changed, ("unfinished", kind.stage, progress, f"last written {moment}", folder.uri))
