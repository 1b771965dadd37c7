"""Child processes end with the process that started them, even if they try to escape."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.runners.child import Child
from tests.runs import CHECKOUT, await_that

_TREE = """
import os, subprocess, sys, time
if os.fork() == 0:          # a grandchild in a session of its own, as daemons do
    os.setsid()
    if os.fork() == 0:
        open(sys.argv[1], "w").write(f"{os.getpid()}\\n")
        time.sleep(600)
    os._exit(0)
time.sleep(600)
"""

_OWNER = """
import sys, time
from tasks.runners.child import Child
import os
child = Child([sys.executable, "-c", sys.argv[1], sys.argv[2]], env=os.environ, remove=sys.argv[3])
time.sleep(600)
"""


@pytest.mark.usefixtures("integration")
def test_everything_a_child_started_ends_when_its_owner_is_killed(tmp_path: Path) -> None:
    pid_file, folder = tmp_path / "pid", tmp_path / "scratch"
    folder.mkdir()
    owner = subprocess.Popen([sys.executable, "-c", _OWNER, _TREE, str(pid_file), str(folder)], cwd=CHECKOUT)
    await_that(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), limit_s=30)
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    await_that(lambda: not _alive(int(pid_file.read_text())), limit_s=15)
    await_that(lambda: not folder.exists(), limit_s=5)


@pytest.mark.usefixtures("integration")
def test_a_child_of_a_child_still_removes_its_folder(tmp_path: Path) -> None:
    pid_file, folder = tmp_path / "pid", tmp_path / "scratch"
    folder.mkdir()
    command = [sys.executable, "-c", _OWNER, _TREE, str(pid_file), str(folder)]
    outer = Child(command, env=os.environ | {"PYTHONPATH": str(CHECKOUT)})
    await_that(lambda: pid_file.exists() and pid_file.read_text().endswith("\n"), limit_s=30)
    outer.end()
    assert not _alive(int(pid_file.read_text()))
    assert not folder.exists()


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
