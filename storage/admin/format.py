"""Formatting for users: sizes, times, aligned tables, and a manifest as a page."""

import datetime
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from rich.filesize import decimal as size

from storage.admin.catalog import Folder
from storage.decision import Decision
from storage.manifest import Manifest
from storage.terminal import count

__all__ = ["count", "decided", "moment", "page", "size", "table"]
_MANY, _FEW = 20, 5
"""Maximum numbers of plain and of nested values printed one by one; of a longer list only the length and the last."""


def moment(time: datetime.datetime) -> str:
    """Format a time as local time to the minute: `2026-11-23 14:05`."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M")


def decided(decision: Decision) -> str:
    """Format time, author and reason of a decision, if known: `2026-11-23 14:05 by ada: promoted by hand`."""
    known = [moment(decision.decided) if decision.decided else "", f"by {decision.author}" if decision.author else ""]
    return ": ".join(filter(None, [" ".join(filter(None, known)), decision.reason]))


def table(rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> Iterator[str]:
    """Yield a line for each row with aligned columns, those in `right` to the right; lines are never cut or wrapped."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        aligned = [f"{cell:{'>' if i in right else '<'}{widths[i]}}" for i, cell in enumerate(row)]
        yield "  ".join(aligned).rstrip()


def page(folder: Folder, manifest: Manifest) -> Iterator[str]:
    """Yield the lines that describe a committed result, without its schema and the files' checksums."""
    sections = {
        "parents": [(role, str(parent)) for role, parent in sorted(folder.parents.items())],
        "parameters": list(_facts(manifest.parameters)),
        "statistics": list(_facts(manifest.statistics)),
        "producer": [(name, str(version)) for name, version in sorted(manifest.producer.items()) if version],
        "files": list(_files(manifest)),
    }
    yield f"{manifest.kind}  {folder.uri}"
    yield f"created  {moment(folder.created)}"
    for title, facts in sections.items():
        yield title
        yield from (f"  {line}" for line in table(facts or [("none",)]))


def _files(manifest: Manifest) -> Iterator[tuple[str, str]]:
    splits = list(dict.fromkeys(file.split for file in manifest.files))
    for split in [*splits, *([None] if len(splits) > 1 else [])]:
        files = manifest.split(split)
        rows = sum(file.rows or 0 for file in files)
        facts = [count(len(files), "file"), size(sum(file.size for file in files))]
        yield split or "all", ", ".join(facts + ([count(rows, "row")] if rows else []))


def _facts(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and values; nested values get a dotted name."""
    for name, value in sorted(values.items()):
        if isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
            yield from _facts(value, f"{prefix}{name}.")
        elif isinstance(value, list) and len(value) <= _FEW and any(isinstance(item, dict) for item in value):
            yield from ((f"{prefix}{name}.{number}", _plain(item)) for number, item in enumerate(value, start=1))
        else:
            yield f"{prefix}{name}", _plain(value)


def _plain(value: Any) -> str:
    if value is None or value in ([], {}):
        return "none"
    is_nested = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    if isinstance(value, dict | list) and len(value) > (_FEW if is_nested else _MANY):
        return count(len(value), "value") + (f", the last: {_plain(value[-1])}" if isinstance(value, list) else "")
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_plain(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    return f"{value:.6g}" if isinstance(value, float) else " ".join(str(value).split())
