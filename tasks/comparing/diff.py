"""What is different in two results or runs: data, recipe, code, versions, hardware, metrics and test rows."""

from collections.abc import Iterator, Mapping
from typing import Any

from storage import kinds
from storage.manifest import Damaged, Manifest
from storage.terminal import count
from tasks.comparing import data_changes, data_rows, row_changes
from tasks.comparing.results import Results
from tasks.learning import recipes

_MADE_BY = (kinds.CHECKPOINT, kinds.PREPARED, kinds.RAW, kinds.FILES)
"""Results that say with which code they were made; the first that both have counts."""
_SHOWN = 3
"""Most classes in a line."""


def diff(a: Results, b: Results) -> dict[str, Any]:
    """Return everything that is different in `b` from `a` as JSON values, and in `changes` a line for each cause.

    What cannot be compared, such as deleted data, is none, and `notes` says why.
    """
    document: dict[str, Any] = {"a": _described(a), "b": _described(b), "changes": []}
    notes: dict[str, str] = {}
    rows = data = tests = None
    is_same = _is_same_data(a, b)
    try:
        rows = None if is_same else data_rows.load(a, b)
        data = data_changes.compare(rows[1], rows[2], unit=rows[0]) if rows else data_changes.NONE
    except (FileNotFoundError, Damaged, ValueError) as error:
        notes["data"] = str(error)
    if all(side.manifest(kinds.CHECKPOINT) for side in (a, b)):
        try:
            tests = row_changes.compare(a, b, rows, is_same_data=is_same)
        except (FileNotFoundError, Damaged, ValueError) as error:
            notes["test_rows"] = str(error)
    document |= {"data": data, **_settings(a, b), "test_rows": tests, "notes": notes}
    document["changes"] = list(_lines(document))
    return document


def _described(side: Results) -> dict[str, Any]:
    trained, evaluated = side.manifest(kinds.CHECKPOINT), side.manifest(kinds.EVALUATION)
    newest = trained or next(recorded for _, recorded in side.manifests.values())
    return {
        "uri": side.uri,
        "results": {kind: uri for kind, (uri, _) in side.manifests.items()},
        "created": newest.created.isoformat(timespec="seconds"),
        "evaluation": evaluated.statistics if evaluated else None,
    }


def _is_same_data(a: Results, b: Results) -> bool:
    """Return whether both have the same data, as far as that is known."""
    first, second = map(_content, (a, b))
    return first is not None and first == second


def _content(side: Results) -> str | None:
    """Return the digest of the content of the data; known to the prepared dataset even if the raw one was deleted."""
    if recorded := side.manifest(kinds.RAW) or side.manifest(kinds.FILES):
        return recorded.content
    prepared = side.manifest(kinds.PREPARED)
    return prepared.parents["raw"].content if prepared and "raw" in prepared.parents else None


def _settings(a: Results, b: Results) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the fields of recipe, code, versions and hardware that differ, each with both values."""
    both = [kind for kind in _MADE_BY if a.manifest(kind) and b.manifest(kind)]
    sides = [{kind.name: recorded for kind in both if (recorded := side.manifest(kind))} for side in (a, b)]
    first, second = (dict(_groups(side)) for side in sides)
    return {
        group: {
            name: {"a": first[group].get(name), "b": second[group].get(name)}
            for name in dict.fromkeys([*first[group], *second[group]])
            if first[group].get(name) != second[group].get(name)
        }
        for group in first
    }


def _groups(manifests: Mapping[str, Manifest]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the settings of a run by group; `manifests` are of its results, from the checkpoint back to the data."""
    trained, newest = manifests.get(kinds.CHECKPOINT.name), next(iter(manifests.values()), None)
    fields: dict[str, Any] = {}
    for recorded in reversed(list(manifests.values())):
        fields |= recorded.parameters
    if trained:
        fields |= recipes.flat(trained.statistics.get("recipe", {}))
        fields |= {role: parent.uri for role, parent in trained.parents.items() if role in ("initial", "weights")}
    yield "recipe", fields
    versions = dict(newest.producer) if newest else {}
    commit, _, dirty = (versions.pop("git", None) or "").partition(" dirty ")
    yield "code", {"commit": commit or None, "dirty": bool(dirty), "digest": versions.pop("code", None)}
    yield "versions", versions
    ran = trained.statistics if trained else {}
    yield "hardware", {"training": "; ".join(ran.get("hardware", ())), **ran.get("resolved", {})}


def _lines(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each cause: a sort of change in the data, a field of recipe, code, versions or hardware."""
    data = document["data"] or data_changes.NONE
    for sort, number in data["counts"].items():
        if number:
            classes = data["by_class"][sort]
            named = ", ".join(f"{name or 'no class'} {its:,}" for name, its in list(classes.items())[:_SHOWN])
            named += ", ..." if len(classes) > _SHOWN else ""
            yield f"data: {count(number, data['unit'])} {sort}: {named}"
    for group in ("recipe", "code", "versions", "hardware"):
        for name, values in document[group].items():
            yield f"{group}: {name} {_shown(values['a'])} -> {_shown(values['b'])}"


def _shown(value: Any) -> str:
    return "unset" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
