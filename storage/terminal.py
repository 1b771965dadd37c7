"""What users read in a terminal: counts, and text that cannot act on it.

Lines are never folded here: a terminal wraps a long one itself, and a URI in it is still copied whole.
"""

import os
import re
import sys
from typing import TextIO

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Characters that act on a terminal instead of being shown: all controls but tab and line feed, and bidi overrides."""


def count(number: float, noun: str) -> str:
    """Format a number with its noun: `1 file`, `2,000 files`, `0.5 CPUs`."""
    shown = f"{int(number):,}" if number == int(number) else f"{number:g}"
    return f"{shown} {noun}" if number == 1 else f"{shown} {noun}s"


def printable(text: str) -> str:
    """Escape control characters in `text`: a file or class name could clear the screen or set the clipboard."""
    return _CONTROLS.sub(lambda match: repr(match[0])[1:-1], text)


def show(text: str, stream: TextIO | None = None) -> None:
    """Print `text` on `stream` (default: standard output), always `printable`; on a terminal with `short` paths."""
    stream, text = stream or sys.stdout, printable(text)
    print(short(text) if stream.isatty() else text, file=stream, flush=True)


def short(text: str) -> str:
    """Make every path in `text` that lies below the working directory relative to it."""
    folder = os.getcwd()
    return text if folder == os.sep else re.sub(rf"(?<![\w./:~-]){re.escape(folder)}{os.sep}(?=\S)", "", text)
