"""What users read in a terminal: counts, sizes, times, aligned tables, and text that cannot act on it.

Lines are never folded here: a terminal wraps a long one itself, and a URI in it is still copied whole.
"""

import datetime
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import TextIO

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that act on a terminal instead of being shown: all controls but tab and line feed, and bidi overrides."""


def count(number: float, noun: str) -> str:
    """Format a number with its noun: `1 file`, `2,000 files`, `0.5 CPUs`."""
    shown = f"{int(number):,}" if number == int(number) else f"{number:g}"
    return f"{shown} {noun}" if number == 1 else f"{shown} {noun}s"


def first(names: Iterable[object], most: int = 10) -> str:
    """Join the first names, and say if there are more: `cat, dog, ...`."""
    names = [*names]
    return ", ".join([*map(str, names[:most]), *["..."] * (len(names) > most)])


def size(num_bytes: int) -> str:
    """Format a number of bytes: `1.5 MB`."""
    from rich.filesize import decimal

    return decimal(num_bytes)


def moment(time: datetime.datetime) -> str:
    """Format a time as local time to the minute: `2026-11-23 14:05`."""
    return time.astimezone().strftime("%Y-%m-%d %H:%M")


def table(rows: Iterable[Sequence[str]], *, right: Sequence[int] = ()) -> Iterator[str]:
    """Yield a line for each row with aligned columns, those in `right` to the right; lines are never cut or wrapped."""
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        aligned = [f"{cell:{'>' if i in right else '<'}{widths[i]}}" for i, cell in enumerate(row)]
        yield "  ".join(aligned).rstrip()


def printable(text: str) -> str:
    """Escape control characters in `text`: a file or class name could clear the screen or set the clipboard."""
    return _CONTROLS.sub(lambda match: repr(match[0])[1:-1], text)


def show(text: str, stream: TextIO | None = None) -> None:
    """Print `text` on `stream` (default: standard output), always `printable`; on a terminal with `short` paths."""
    stream, text = stream or sys.stdout, printable(text)
    print(short(text) if stream.isatty() else text, file=stream, flush=True)


def show_lines(lines: Iterable[str]) -> None:
    """Show lines on standard output, each as soon as it is there."""
    for line in lines:
        show(line)


def answer(document: object, lines: Iterable[str], *, as_json: bool) -> int:
    """Print what a command found, `document` as JSON or else `lines`; return 0."""
    if as_json:
        print(json.dumps(document, indent=1), flush=True)
    else:
        show_lines(lines)
    return 0


def short(text: str) -> str:
    """Make every path in `text` that lies below the working directory relative to it."""
    folder = os.getcwd()
    return text if folder == os.sep else re.sub(rf"(?<![\w./:~-]){re.escape(folder)}{os.sep}(?=\S)", "", text)
