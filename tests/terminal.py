"""Commands at a terminal: a real pseudo-terminal with a given number of columns."""

import fcntl
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.runs import CHECKOUT

_ESCAPES = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]")


def typed(
    command: Sequence[str], *, columns: int = 80, folder: Path | None = None, env: Mapping[str, str] | None = None
) -> tuple[int, list[str]]:
    """Run Python with `command` at a terminal.

    Returns:
        The exit code, and what it wrote to the terminal as lines, without escape sequences.
    """
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    usual = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "NO_COLOR")}
    process = subprocess.Popen(
        [sys.executable, *command],
        cwd=folder,
        env=usual | {"TERM": "xterm", "PYTHONPATH": str(CHECKOUT)} | dict(env or {}),
        stdin=its,
        stdout=its,
        stderr=its,
        start_new_session=True,
    )
    os.close(its)
    written = b""
    while chunk := _read(ours):
        written += chunk
    os.close(ours)
    text = _ESCAPES.sub(b"", written).decode(errors="replace")
    return process.wait(), text.replace("\r\n", "\n").splitlines()


def _read(terminal: int) -> bytes:
    """What is there to read, nothing once every process has closed the terminal."""
    try:
        return os.read(terminal, 65536)
    except OSError:
        return b""
