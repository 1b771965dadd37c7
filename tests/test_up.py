"""`make up`: it ends cleanly, and what a power cut left behind blocks nobody."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.operated import Server, free_port
from tests.runs import CHECKOUT, await_that, processes_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


class Up(Server):
    """A running `make up`."""

    def __init__(self, port: int, folder: Path) -> None:
        super().__init__(port)
        folder.mkdir(exist_ok=True)
        home = str(folder / "home")
        self.mark, self.output = f"PREFECT_HOME={home}", folder / f"{len(list(folder.iterdir()))}.log"
        self.process = subprocess.Popen(
            [sys.executable, str(CHECKOUT / "flows" / "up.py"), "--port", str(port)],
            env={**os.environ, "PREFECT_HOME": home, "PIPELINE_STORAGE": str(folder / "root")},
            stdout=self.output.open("wb"),
            stderr=subprocess.STDOUT,
            # As in a terminal: what is started in a shell's background ignores SIGINT, and so does all that it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        await_that(lambda: "Ctrl-C stops everything" in self.output.read_text() or self.process.poll(), limit_s=180)
        assert self.process.poll() is None, self.output.read_text()

    def cut_power(self) -> None:
        """SIGKILL every process of it at once."""
        for pid in processes_with(self.mark):
            os.kill(pid, signal.SIGKILL)
        self.process.wait()


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of the test's own; no process that was started in its name outlives the test."""
    yield tmp_path / "up"
    for pid in processes_with(f"PREFECT_HOME={tmp_path / 'up' / 'home'}"):
        os.kill(pid, signal.SIGKILL)


def test_after_a_power_cut_the_run_is_seen_to_have_crashed_and_the_next_one_goes_on(folder: Path) -> None:
    port = free_port()
    up = Up(port, folder)
    run = up.start("mnist/smoke")
    await_that(lambda: up.says(run, "preprocess started"), interval_s=0.5)
    up.cut_power()

    up = Up(port, folder)
    assert up.await_end(run, limit_s=300) == ["Crashed"]
    following = up.start("mnist/smoke")
    await_that(lambda: up.says(following, "train started"), interval_s=0.5)
    assert up.says(following, "download reused")

    up.process.send_signal(signal.SIGINT)
    assert up.process.wait(90) == 0
    await_that(lambda: not processes_with(up.mark), limit_s=30)

    up = Up(port, folder)
    assert up.state(following)["message"] == "the worker was stopped"
