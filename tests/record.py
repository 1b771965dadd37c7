"""Record a command at a terminal as an SVG: killed once, typed again, and once more when everything is done.

How docs/images/run.svg was made, in a checkout at /home/me/pipeline with its virtual environment active:

    python -m tests.record docs/images/run.svg --columns 110 --kill-at "epoch 2/4" \\
        --only "epoch ./4:|resum|^train |decision|reused:" -- python flows/pipeline.py --recipe mnist-sample-resnet18
"""

import argparse
import fcntl
import os
import pty
import re
import shlex
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from rich.console import Console
from rich.text import Text

_TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|(\r\n|\r|\n)|([^\x1b\r\n]+)")
_FONT = re.compile(r"@font-face \{.*?\}\s*", re.DOTALL)
_LINE = re.compile(r'clip-path="url\(#[\w-]+-line-(\d+)\)"')
_REPLAY_S = 10.0
"""How long the whole recording takes to appear, however long the command took."""
_MOTION = """
    @keyframes appear { from { opacity: 0 } }
    @media (prefers-reduced-motion: reduce) { text { animation: none !important } }
"""


class Screen:
    """What a terminal shows after everything written to it, with the time at which each line got its text."""

    def __init__(self) -> None:
        self.lines: list[str] = [""]
        self.times: list[float] = [0.0]
        self._row = 0
        self._is_fresh = True

    def write(self, text: str, *, at_s: float) -> None:
        """Write `text`, with the escape sequences that rich uses, `at_s` seconds after the start."""
        for number, command, control, plain in _TOKEN.findall(text):
            if plain or command == "m":
                self._put(plain or f"\x1b[{number}m", at_s)
            elif command == "A":
                self._row = max(self._row - int(number or 1), 0)
            elif command == "K":
                self.lines[self._row] = ""
            elif control == "\r":
                self._is_fresh = True
            elif control:
                self._row, self._is_fresh = self._row + 1, True
                if self._row == len(self.lines):
                    self.lines.append("")
                    self.times.append(at_s)

    def _put(self, text: str, at_s: float) -> None:
        before = "" if self._is_fresh else self.lines[self._row]
        self.lines[self._row], self.times[self._row], self._is_fresh = before + text, at_s, False


def record(command: Sequence[str], screen: Screen, *, columns: int, kill_at: str = "") -> None:
    """Run `command` at a pseudo-terminal; kill all of it when it has written `kill_at`, else require exit code 0."""
    ours, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 60, columns, 0, 0))
    started = time.monotonic() - max(screen.times)
    screen.write(f"\x1b[1m$ {shlex.join(command)}\x1b[0m\n", at_s=max(screen.times))
    env = os.environ | {"TERM": "xterm-256color"}
    with subprocess.Popen(command, env=env, stdin=its, stdout=its, stderr=its, start_new_session=True) as process:
        os.close(its)
        for text in _chunks(ours):
            screen.write(text, at_s=time.monotonic() - started)
            if kill_at and kill_at in text:
                os.killpg(process.pid, signal.SIGKILL)
                screen.write("\nKilled\n", at_s=time.monotonic() - started)
                break
    os.close(ours)
    if process.returncode and not kill_at:
        raise subprocess.CalledProcessError(process.returncode, command)


def _chunks(terminal: int) -> Iterable[str]:
    pending = b""
    while True:
        try:
            pending += os.read(terminal, 65536)
        except OSError:  # every process has closed the terminal
            return
        cut = max(pending.rfind(b"\n") + 1, pending.rfind(b"\r"), 0)  # never within a character or a sequence
        yield pending[:cut].decode(errors="replace")
        pending = pending[cut:]


def to_svg(screen: Screen, *, columns: int, title: str) -> str:
    """Return an SVG of `screen` that needs no font from elsewhere."""
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=columns, file=nowhere, force_terminal=True, color_system="truecolor")
        for line in screen.lines:
            console.print(Text.from_ansi(line), soft_wrap=True)
        svg = _FONT.sub("", console.export_svg(title=title))
    longest = max(screen.times) or 1.0
    delays = [_REPLAY_S * at_s / longest for at_s in screen.times]

    def appear(found: re.Match[str]) -> str:
        delay = delays[min(int(found[1]), len(delays) - 1)]
        return f'{found[0]} style="animation: appear 0.1s {delay:.1f}s both"'

    head, style, rest = svg.partition("<style>")
    return head + style + _MOTION + _LINE.sub(appear, rest)


def main() -> None:
    """Record the command that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.record", description="Record a command as an SVG.")
    parser.add_argument("svg", type=Path, help="file to write")
    parser.add_argument("--columns", type=int, default=100, help="width of the terminal (default: %(default)s)")
    parser.add_argument("--title", default="pipeline", help="title of the window (default: %(default)s)")
    parser.add_argument("--kill-at", required=True, help="kill the first run when it has written this")
    parser.add_argument("--only", required=True, help="regular expression of the lines to show")
    parser.add_argument("command", nargs="+", help="what to run, after --")
    arguments = parser.parse_args()
    screen = Screen()
    for kill_at in (arguments.kill_at, "", ""):
        record(arguments.command, screen, columns=arguments.columns, kill_at=kill_at)
    shown = re.compile(rf"\$ |Killed|{arguments.only}")
    kept = [at for at, line in enumerate(screen.lines) if shown.search(Text.from_ansi(line).plain)]
    screen.lines, screen.times = [screen.lines[at] for at in kept], [screen.times[at] for at in kept]
    arguments.svg.write_text(to_svg(screen, columns=arguments.columns, title=arguments.title))


if __name__ == "__main__":
    main()
