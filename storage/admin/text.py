"""Words for people: sizes, aligned tables, and a manifest on a page."""

from collections.abc import Iterator, Sequence
from typing import Any

from storage.manifest import Manifest
from storage.uri import URI

_MANY = 20
"""How many values fit a line; of more only their number is said."""
_FEW = 5
"""How many values that hold others are told one by one; of more only the last."""


def size(num_bytes: int) -> str:
    """Bytes in decimal units with three digits or so: `999 B`, `1.2 kB`, `34.5 MB`."""
    value, units = float(num_bytes), ["B", "kB", "MB", "GB", "TB", "PB"]
    while value >= 999.95 and len(units) > 1:
        value /= 1000
        units.pop(0)
    return f"{num_bytes} B" if units[0] == "B" else f"{value:.1f} {units[0]}"


def count(number: int, noun: str) -> str:
    """`1 file`, `2,000 files`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def table(rows: Sequence[Sequence[str]], *, right: Sequence[int] = ()) -> Iterator[str]:
    """A line for each row, columns aligned, those in `right` to the right; never cut or wrapped."""
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.rjust(width) if index in right else cell.ljust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def page(uri: URI, made: Manifest) -> Iterator[str]:
    """What there is to know of a committed result, without its schema and the checksum of each file."""
    sections = {
        "parents": sorted(made.parents.items()),
        "parameters": list(_facts(made.parameters)),
        "statistics": list(_facts(made.statistics)),
        "producer": [(name, str(version)) for name, version in sorted(made.producer.items()) if version],
        "files": list(_files(made)),
    }
    yield f"{made.kind}  {uri}"
    for title, facts in sections.items():
        yield title
        yield from (f"  {line}" for line in table(facts or [("none",)]))


def _files(made: Manifest) -> Iterator[tuple[str, str]]:
    """Files, bytes and rows of every split in the manifest's order, and of all together when there are several."""
    splits = list(dict.fromkeys(file.split for file in made.files))
    for split in [*splits, *([None] if len(splits) > 1 else [])]:
        listed = made.split(split)
        rows = sum(file.rows or 0 for file in listed)
        facts = [count(len(listed), "file"), size(sum(file.size for file in listed))]
        yield split or "all", ", ".join(facts + ([count(rows, "row")] if rows else []))


def _facts(values: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Names and values, those within others with a dotted name; of what is long only its number and its end."""
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
    """A value in one line."""
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
