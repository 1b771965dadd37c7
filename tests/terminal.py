"""Commands at a terminal of 80 columns."""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.runs import CHECKOUT

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


def typed(command: Sequence[str], *, folder: Path) -> list[str]:
    """Run Python with `command` at a terminal; return the lines that it wrote, without escape sequences."""
    env = {name: value for name, value in os.environ.items() if name != "NO_COLOR"}
    env |= {"TERM": "xterm", "COLUMNS": "80", "PYTHONPATH": str(CHECKOUT)}
    at_terminal = ["script", "-qec", shlex.join([sys.executable, *command]), os.devnull]
    done = subprocess.run(at_terminal, cwd=folder, env=env, capture_output=True, text=True, check=True)
    return _ESCAPES.sub("", done.stdout).splitlines()
