"""What users read in a terminal: counts, and lines that break only between words, so that a URI is never split.

Output that does not go to a terminal is not changed: each URI stays on one line.
"""

import os
import re
import shutil
import sys
from typing import TextIO

_INDENT = "    "
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that act on a terminal instead of being shown: all controls but tab and line feed, and bidi overrides."""
_TREE = re.compile(r"[ │├└─]*")
_BELOW = str.maketrans("├└─", "│  ")
_whole: set[str] = set()
"""Paths that contain spaces and must not be broken at them."""


def count(number: float, noun: str) -> str:
    """Format a number with its noun: `1 file`, `2,000 files`, `0.5 CPUs`."""
    shown = f"{int(number):,}" if number == int(number) else f"{number:g}"
    return f"{shown} {noun}" if number == 1 else f"{shown} {noun}s"


def keep_whole(place: str) -> None:
    """Never break a line within the storage root `place` or the path below it, even at a space in `place`."""
    if " " in (shown := short(place)):
        _whole.add(shown)


def width(stream: TextIO) -> int | None:
    """Return the number of columns of the terminal `stream`; none if it is not a terminal."""
    return shutil.get_terminal_size().columns if stream.isatty() else None


def printable(text: str) -> str:
    """Escape control characters in `text`: a file or class name could clear the screen or set the clipboard."""
    return _CONTROLS.sub(lambda match: repr(match[0])[1:-1], text)


def show(text: str, stream: TextIO | None = None) -> None:
    """Print `text` on `stream` (default: standard output), always `printable`; on a terminal, fold its lines."""
    stream, text = stream or sys.stdout, printable(text)
    columns = width(stream)
    lines = text.split("\n") if columns is None else on_terminal(text, columns)
    print(*lines, sep="\n", file=stream, flush=True)


def on_terminal(text: str, columns: int) -> list[str]:
    """Return `text` with shortened paths, as lines folded for a terminal of `columns`."""
    return [folded for line in text.split("\n") for folded in fold(short(line), columns)]


def short(text: str) -> str:
    """Make every path in `text` that lies below the working directory relative to it."""
    here = os.getcwd()
    return text if here == os.sep else re.sub(rf"(?<![\w./:~-]){re.escape(here)}{os.sep}(?=\S)", "", text)


def fold(line: str, columns: int) -> list[str]:
    """Break `line` at spaces into lines of at most `columns`; a longer word gets a line of its own.

    Spaces between words are kept. Lines after the first are indented, unless a word fits only without the indent.
    """
    whole = "".join(rf"{re.escape(place)}\S*|" for place in _whole)
    trunk = _TREE.match(line)
    indent = (trunk[0].translate(_BELOW) if trunk else "") + _INDENT
    found: list[str] = []
    for spaces, word in re.findall(rf"( *)((?:{whole}\S)+)", line):
        if found and len(found[-1]) + len(spaces) + len(word) <= columns:
            found[-1] += spaces + word
            continue
        start = indent if found else spaces
        found.append(word if len(start) + len(word) > columns else start + word)
    return found or [""]
