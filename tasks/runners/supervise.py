"""Supervisor of a command that must not outlive its owner: `python supervise.py GRACE_S FOLDER_TO_REMOVE -- COMMAND`.

The command ends when standard input closes: its owner closes the pipe or dies, even by SIGKILL. Every process that the
command started ends too, also outside its process group: this process is a Linux child subreaper, so it adopts orphans
and ends them all before it exits. If it is killed itself, the kernel sends the command SIGTERM. Uses the standard
library only; the pipeline never imports it.
"""

import contextlib
import ctypes
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_PATIENCE_S, _LIMIT_S = 6.0, 10.0


def main() -> int:
    """Run the command until it ends or standard input closes; return its exit code, as a shell does."""
    (grace_s, folder), command = sys.argv[1:3], sys.argv[4:]
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    prctl = ctypes.CDLL(None).prctl if sys.platform == "linux" else lambda *_: 0
    prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)

    def prepare_command() -> None:
        for restored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(restored, signal.SIG_DFL)
        prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)  # in case this process is killed itself

    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=prepare_command)
    while child.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], 0.2)
        if readable and not os.read(sys.stdin.fileno(), 1024):
            break
    _end(child, grace_s=float(grace_s))
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    code = child.returncode or 0
    return code if code >= 0 else 128 - code


def _end(child: "subprocess.Popen[bytes]", *, grace_s: float) -> None:
    """Terminate the command, then kill every process that is left.

    Other supervisors among them get some seconds first, to end their own commands and to clean up.
    """
    if child.poll() is None:
        child.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(grace_s)
    started = time.monotonic()
    while (pids := _children()) and time.monotonic() - started < _LIMIT_S:
        for pid in pids:
            if _is_like_this_one(pid) and time.monotonic() - started < _PATIENCE_S:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def _is_like_this_one(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.fsencode(__file__) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def _children() -> list[int]:
    """Return the living processes whose parent is this one; zombies are left out."""
    own, found = str(os.getpid()), []
    for entry in Path("/proc").glob("[0-9]*/stat") if sys.platform == "linux" else ():
        try:
            state, parent = entry.read_text().rpartition(")")[2].split()[:2]
        except (OSError, ValueError):
            continue
        if parent == own and state != "Z":
            found.append(int(entry.parent.name))
    return found


if __name__ == "__main__":
    raise SystemExit(main())
