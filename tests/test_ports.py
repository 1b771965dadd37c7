"""Nobody on another machine can reach a local Ray."""

import contextlib
import os
import re
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.jobs import dashboard
from tests.runs import await_that, processes_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

_LISTENING = "0A"
_LOOPBACK = "(0{16}FFFF0000)?[0-9A-F]{6}7F:.*|0{24}01000000:.*"
"""127.0.0.0/8, also as an IPv6 address, and ::1, in words of four bytes in the order of a little-endian machine."""
_JOB = """
import ray, sys, time
ray.init()
ray.get(ray.remote(lambda: None).remote())
open(sys.argv[1], "w").close()
time.sleep(600)
"""
_FLOW = """
import sys
import subprocess
from tasks.runners.local_runner import LocalRunner, environment
runner = LocalRunner(wanted=True)
try:
    env = environment() | {"RAY_ADDRESS": runner.connect().address}
    with subprocess.Popen(sys.argv[1:], env=env) as job:
        sys.stdin.read()
        job.kill()
finally:
    runner.end()
"""


@pytest.fixture(params=["0", "1"])
def processes(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[set[int]]:
    """Those of a local Ray while a job of its is at work, without and with a dashboard.

    A process of its own starts it: Ray reads its token once in a process, and other tests have had it read theirs.
    """
    token = secrets.token_hex(32)
    env = {name: value for name, value in os.environ.items() if name not in ("RAY_ADDRESS", "RAY_AUTH_MODE")}
    env |= {dashboard.NAME: request.param, "RAY_AUTH_TOKEN": token}
    job = [sys.executable, "-c", _JOB, str(tmp_path / "at-work")]
    with subprocess.Popen([sys.executable, "-c", _FLOW, *job], env=env, stdin=subprocess.PIPE) as flow:
        await_that(lambda: (tmp_path / "at-work").exists() or flow.poll() is not None, limit_s=120)
        assert flow.poll() is None, "the local Ray did not start"
        yield set(processes_with(f"RAY_AUTH_TOKEN={token}"))


def test_a_local_ray_listens_on_loopback_alone(processes: set[int]) -> None:
    addresses = [address for pid in processes for address in _listening(pid)]
    assert len(addresses) > 5, "Ray's ports were not found"
    assert [address for address in addresses if not re.fullmatch(_LOOPBACK, address)] == []


def _listening(pid: int) -> Iterator[str]:
    """Addresses and ports at which a process takes connections, as /proc writes them."""
    inodes = set()
    with contextlib.suppress(OSError):
        for handle in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                inodes.add(os.readlink(handle).removeprefix("socket:[").rstrip("]"))
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/net/{table}").read_text().splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and fields[9] in inodes:
                    yield fields[1]
