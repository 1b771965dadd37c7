"""Runs a command that cannot outlive whoever started it: `python supervise.py GRACE_S FOLDER_TO_REMOVE -- COMMAND ...`.

The command ends when standard input is closed, that is when its owner lets go of the pipe or dies, by SIGKILL too.
Every process that it started ends with it, also those that left its process group: orphans fall to this process (a
Linux child subreaper), which ends them all before it goes. Standard library only, and never imported by the pipeline.
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

_PR_SET_CHILD_SUBREAPER = 36
_PATIENCE_S, _LIMIT_S = 6.0, 10.0


def main() -> int:
    """Run the command until it ends or standard input does; its exit code, or 0 when it was told to end."""
    (grace_s, folder), command = sys.argv[1:3], sys.argv[4:]
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_default_signals)
    while child.poll() is None:
        readable, _, _ = select.select([sys.stdin], [], [], 0.2)
        if readable and not os.read(sys.stdin.fileno(), 1024):
            break
    _end(child, grace_s=float(grace_s))
    if folder:
        shutil.rmtree(folder, ignore_errors=True)
    return max(child.returncode or 0, 0)


def _default_signals() -> None:
    for restored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(restored, signal.SIG_DFL)


def _end(child: "subprocess.Popen[bytes]", *, grace_s: float) -> None:
    """First kindly, then not; until nothing is left.

    Others like this one, which lost their owner with the command, get the time to end what is theirs and to clean up.
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
        _reap()
        time.sleep(0.02)


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def _is_like_this_one(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.fsencode(__file__) in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def _children() -> list[int]:
    """Processes whose parent is this one, dead ones that nobody waited for left out."""
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
