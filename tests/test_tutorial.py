"""README and tutorial work as they stand: every command in its order, in a checkout, with what the page shows of it."""

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import manifest
from storage.kinds import CheckpointURI
from tests.prefect_system import free_port
from tests.runs import CHECKOUT, await_that, copy_of_checkout, kill_all_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(2400)]

_TUTORIAL, _README = ((CHECKOUT / name).read_text() for name in ("docs/tutorial.md", "README.md"))
_LIMIT_S = 900
"""For one command: beside other trainings a run takes several times as long as alone."""
_UNPLUGGED = ["unshare", "--net", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]
"""Runs a command where only loopback exists; it needs root."""
_MAKE_RUN = "python flows/pipeline.py --set epochs=1 --set minimum=0.5"
"""What is typed instead of `make run`, which would install, and trains for four epochs."""


class Terminal:
    """A shell in a checkout with its virtual environment, and the home folder of somebody who starts."""

    def __init__(self, folder: Path) -> None:
        self.checkout, self.home, self.port = copy_of_checkout(folder / "pipeline"), folder, free_port()
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {**os.environ, "HOME": str(folder), "PATH": path, "PREFECT_HOME": str(folder / ".prefect")}
        self.env.pop("PREFECT_API_URL", None)
        self.prefix: list[str] = []
        self.up: subprocess.Popen[bytes] | None = None

    def save_program(self) -> None:
        """Save the program that draws pictures, as the tutorial says."""
        (program,) = re.findall(r"^```python\n(.*?)^```", _TUTORIAL, re.MULTILINE | re.DOTALL)
        (self.checkout / "draw.py").write_text(program)

    def type(self, command: str) -> str:
        """Run a command of the page to its end; return what it printed, without the logs."""
        if file := re.match(r"\. ~/(\S+)$", command):
            words = shlex.split((self.home / file[1]).read_text())
            self.env |= dict(word.split("=", 1) for word in words if "=" in word)
            return ""
        words = [*self.prefix, "bash", "-c", command]
        done = subprocess.run(words, cwd=self.checkout, env=self.env, capture_output=True, text=True, timeout=_LIMIT_S)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout + done.stderr

    def start(self) -> str:
        """Do `make up`, which runs until Ctrl-C; return what it printed until it had started."""
        log = self.home / "up.log"
        self.up = subprocess.Popen(
            [sys.executable, "-m", "flows", "up", "--port", str(self.port)],
            cwd=self.checkout,
            env=self.env,
            stdout=log.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        await_that(lambda: "Ctrl-C stops everything" in log.read_text(), limit_s=180)
        return log.read_text()

    def close(self) -> None:
        """End what was started."""
        if self.up:
            os.killpg(self.up.pid, signal.SIGTERM)
            self.up.wait(90)
        kill_all_with(f"PREFECT_HOME={self.env['PREFECT_HOME']}")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    terminal = Terminal(tmp_path)
    yield terminal
    terminal.close()


def test_every_command_of_the_tutorial_prints_what_the_page_shows(terminal: Terminal) -> None:
    terminal.save_program()
    _follow(_TUTORIAL, terminal)


def test_every_command_of_the_readme_prints_what_it_shows_and_needs_no_network(terminal: Terminal) -> None:
    if subprocess.run([*_UNPLUGGED, "true"], capture_output=True).returncode == 0:
        terminal.prefix = _UNPLUGGED
    terminal.save_program()
    terminal.type("python draw.py ~/photos 1 30 && python draw.py ~/new-photos 901 903")
    readme = re.sub(r"^\$ make up.*\n", "", _README, flags=re.MULTILINE)  # the tutorial has it, too
    _follow(readme.replace("$ make run", f"$ {_MAKE_RUN}"), terminal)
    (photos,) = terminal.checkout.glob("data/checkpoints/photos-*")
    assert "weights" in manifest.load(CheckpointURI(str(photos))).parents, "it starts from the weights of a package"
    (page,) = terminal.checkout.glob("data/reports/photos-*/index.html")
    assert "downloads/weights-" in page.read_text(), "the report links the weights that training began with"


def _follow(page: str, terminal: Terminal) -> None:
    for command, shown in _commands(page):
        if not command.startswith(". .venv"):  # it is active
            printed = terminal.start() if command.startswith("make up") else terminal.type(command)
            _compare(shown, printed, command)


def _commands(page: str) -> list[tuple[str, list[str]]]:
    """Return command and shown lines of each command of the page."""
    commands: list[tuple[str, list[str]]] = []
    for block in re.findall(r"^```console\n(.*?)^```", page, re.MULTILINE | re.DOTALL):
        end = None
        for line in re.sub(r"\\\n *", "", block).splitlines():
            prompt = re.match(r"(second)?\$ ", line)
            if end is not None:  # of what is typed after `cat <<END`
                commands[-1] = (f"{commands[-1][0]}\n{line}", commands[-1][1])
                end = None if line == end else end
            elif prompt:
                commands.append((line[prompt.end() :], []))
                here = re.search(r"<<(\w+)$", line)
                end = here[1] if here else None
            else:
                commands[-1][1].append(line)
    return commands


def _compare(shown: list[str], printed: str, command: str) -> None:
    """Require the shown lines in their order; `...` is any text, and numbers and paths are those of the machine."""
    rest = [_plain(line) for line in printed.splitlines()]
    for line in shown:
        if line == "...":
            continue
        pattern = re.escape(_plain(line)).replace(r"\.\.\.", ".*")
        at = next((at for at, candidate in enumerate(rest) if re.match(pattern, candidate)), None)
        assert at is not None, f"{command}: the page shows {line!r}, printed was\n{printed}"
        rest = rest[at + 1 :]


def _plain(line: str) -> str:
    line = re.sub(r"\S*/pipeline/|\S*/(?=(new-)?photos\b)", "", line)
    line = re.sub(r"\b[0-9a-f]{12}\b", "#", line)
    return re.sub(r" +", " ", re.sub(r"\d[\d.,]*", "#", line)).strip()
