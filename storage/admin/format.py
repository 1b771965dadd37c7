"""Formatting for users: sizes, times, aligned tables, and a manifest as a page."""

import datetime
from collections.abc import Iterator, Sequence
from typing import Any

from storage import terminal
from storage.admin.catalog import Folder
from storage.decision import Decision
from storage.manifest import Manifest
from storage.terminal import count
from storage.uri import URI

_MANY = 20
"""Maximum number of values printed in one line; of a longer list only the length is printed."""
_FEW = 5
"""Maximum number of nested values printed one by one; of a longer list only the length and the last are printed."""


def size(num_bytes: int) -> str:
    """Format bytes in decimal units with about three digits: `999 B`, `1.2 kB`, `34.5 MB`."""
    value, units = float(num_bytes), ["B", "kB", "MB", "GB", "TB", "PB"]
    while value >= 999.95 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{num_bytes} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def moment(time: datetime.datetime) -> str:
    """Format a time as local time to the minute: `2026-11-23 14:05`."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M")


def decided(decision: Decision) -> str:
    """Format time, author and reason of a decision, if known: `2026-11-23 14:05 by ada: promoted by hand`."""
    known = [moment(decision.decided) if decision.decided else "", f"by {decision.author}" if decision.author else ""]
    return ": ".join(filter(None, [" ".join(filter(None, known)), decision.reason]))


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> Iterator[str]:
    """Yield a line for each row with aligned columns, those in `right` to the right; lines are never cut or wrapped."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def table_of_uris(rows: Sequence[Sequence[str]], *, columns: int | None, right: Sequence[int] = ()) -> Iterator[str]:
    """Format a table whose last column is a URI; if it is wider than `columns`, put each URI on a line of its own."""
    lines = list(table(rows, right=right))
    if columns is None or all(len(terminal.short(line)) <= columns for line in lines):
        return iter(lines)
    heads = table([row[:-1] for row in rows], right=right)
    return (line for row, head in zip(rows, heads, strict=True) for line in (head, f"    {row[-1]}"))


def around(head: str, uri: URI, tail: str, *, columns: int | None) -> list[str]:
    """Format a line with `uri` in the middle; if it is wider than `columns`, put the URI on a line of its own."""
    line = f"{head}  {uri}  {tail}"
    fits = columns is None or len(terminal.short(line)) <= columns
    return [line] if fits else [f"{head}  {tail}", f"    {uri}"]


def page(folder: Folder, made: Manifest) -> Iterator[str]:
    """Yield the lines that describe a committed result, without its schema and the files' checksums."""
    sections = {
        "parents": [(role, str(parent)) for role, parent in sorted(folder.parents.items())],
        "parameters": list(_facts(made.parameters)),
        "statistics": list(_facts(made.statistics)),
        "producer": [(name, str(version)) for name, version in sorted(made.producer.items()) if version],
        "files": list(_files(made)),
    }
    yield f"{made.kind}  {folder.uri}"
    yield f"created  {moment(folder.created)}"
    for title, facts in sections.items():
        yield title
        yield from (f"  {line}" for line in table(facts or [("none",)]))


def _files(made: Manifest) -> Iterator[tuple[str, str]]:
    splits = list(dict.fromkeys(file.split for file in made.files))
    for split in [*splits, *([None] if len(splits) > 1 else [])]:
        listed = made.split(split)
        rows = sum(file.rows or 0 for file in listed)
        facts = [count(len(listed), "file"), size(sum(file.size for file in listed))]
        yield split or "all", ", ".join(facts + ([count(rows, "row")] if rows else []))


def _facts(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield names and values; nested values get a dotted name, of long lists only the length and the last value."""
    for name, value in sorted(values.items()):
        if isinstance(value, dict) and any(isinstance(item, dict | list) for item in value.values()):
            yield from _facts(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
            if len(value) > _FEW:
                yield f"{prefix}{name}", f"{len(value)}, the last: {_plain(value[-1])}"
            else:
                yield from ((f"{prefix}{name}.{number}", _plain(item)) for number, item in enumerate(value, start=1))
        else:
            yield f"{prefix}{name}", _plain(value)


def _plain(value: Any) -> str:
    if isinstance(value, dict | list) and not value:
        return "none"
    if isinstance(value, dict | list) and len(value) > _MANY:
        return count(len(value), "value")
    if isinstance(value, dict):
        return ", ".join(f"{name}: {_plain(item)}" for name, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_plain, value))
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None else " ".join(str(value).split())
