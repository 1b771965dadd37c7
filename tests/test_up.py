"""`make up` ends cleanly, the next one resumes the runs that ended with it, and no web page can use its server."""

import contextlib
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import registry
from storage.uri import Root
from tests.prefect_system import Server, free_port
from tests.runs import CHECKOUT, await_that, kill_all_with, processes_with

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]

_SMALL: dict[str, Any] = {"settings": {"epochs": 6, "model": "small-cnn", "minimum": 0}, "workers": 0}
"""A training that takes longer than a line of its log to the server."""


class Up(Server):
    """A running `make up`."""

    def __init__(self, port: int, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        home = str(folder / "home")
        access = folder / "home" / "make-up.env"
        self.mark, self.output = f"PREFECT_HOME={home}", folder / f"{len(list(folder.iterdir()))}.log"
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flows", "up", "--port", str(port)],
            cwd=CHECKOUT,
            env={**_without_server(), "PREFECT_HOME": home, "PIPELINE_STORAGE": str(folder / "root")},
            stdout=self.output.open("wb"),
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # As in a terminal: what is started in a shell's background ignores SIGINT, and so does all that it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )
        has_started = "Ctrl-C stops everything"
        await_that(lambda: has_started in self.output.read_text() or self.process.poll() is not None, limit_s=180)
        assert self.process.poll() is None, self.output.read_text()
        self.password = shlex.split(access.read_text())[-1].partition("=")[2]
        assert access.stat().st_mode & 0o777 == 0o600 and self.output.read_text().count(self.password) == 1
        super().__init__(port, auth=self.password)

    def press_ctrl_c(self) -> None:
        """SIGINT to every process of its group, as a terminal sends it; returns once all of it has ended well."""
        os.killpg(self.process.pid, signal.SIGINT)
        assert self.process.wait(90) == 0, self.output.read_text()
        await_that(lambda: not processes_with(self.mark), limit_s=30)

    def stop_as_systemd(self) -> None:
        """SIGTERM every process of it at once."""
        for pid in processes_with(self.mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGTERM)
        assert self.process.wait(90) == 0, self.output.read_text()

    def cut_power(self) -> None:
        """SIGKILL every process of it at once."""
        kill_all_with(self.mark)
        self.process.wait()


def _without_server() -> dict[str, str]:
    """The environment of somebody who has not named a Prefect server yet."""
    return {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder of the test's own; no process that was started in its name outlives the test."""
    yield tmp_path / "up"
    kill_all_with(f"PREFECT_HOME={tmp_path / 'up' / 'home'}")


def test_run_resumes_by_itself_after_ctrl_c_and_after_a_power_cut(folder: Path) -> None:
    port = free_port()
    up = Up(port, folder)
    run = up.start("mnist/smoke", **_SMALL)
    await_that(lambda: up.says(run, "download started"), interval_s=0.5)
    lease = _lease_of_an_hour(up)
    up.press_ctrl_c()
    assert "anonymous usage" not in up.output.read_text()

    up = Up(port, folder)
    # Prefect crashes a run that cannot renew its lease.
    up.api("POST", f"/v2/concurrency_limits/leases/{lease}/renew", {"lease_duration": 3600})
    assert up.state(run)["name"] in ("AwaitingRetry", "Late", "Pending", "Submitting", "Running")
    up.await_start(run, 2)
    await_that(lambda: up.says(run, "train started"), interval_s=0.5)
    up.stop_as_systemd()

    up = Up(port, folder)
    assert up.state(run)["name"] in ("AwaitingRetry", "Late", "Pending", "Submitting", "Running")
    up.await_start(run, 3)
    await_that(lambda: up.says(run, "preprocess reused"), interval_s=0.5)
    up.cut_power()

    up = Up(port, folder)
    assert up.await_end(run) == ["Promoted"]
    assert up.says(run, "download reused")
    assert up.starts(run) == 4
    assert registry.champion(Root(str(folder / "root")), "mnist-sample") is not None
    summary = up.artifacts(run)["mnist-sample-summary"]
    link = re.search(r"\[Report page\]\((http://127.0.0.1:.*/index.html)\)", summary)
    assert link and b"mnist-sample-resnet18" in urllib.request.urlopen(link[1], timeout=10).read()


def _lease_of_an_hour(up: Up) -> str:
    """Return a lease as a running flow run holds it on the concurrency limit of its deployment."""
    up.api("POST", "/v2/concurrency_limits/", {"name": "survives", "limit": 1})
    request = {"names": ["survives"], "slots": 1, "mode": "concurrency", "lease_duration": 3600}
    return str(up.api("POST", "/v2/concurrency_limits/increment-with-lease", request)["lease_id"])


def test_only_the_password_runs_programs_and_a_second_make_up_is_refused(folder: Path, tmp_path: Path) -> None:
    up = Up(free_port(), folder)
    env = {**_without_server(), "PREFECT_HOME": str(folder / "home")}
    words = [sys.executable, "-m", "flows", "up", "--port", str(free_port())]
    second = subprocess.run(words, cwd=CHECKOUT, env=env, capture_output=True, text=True)
    used = f"error: PREFECT_HOME={folder / 'home'} is used by another `make up`, {up.url}: stop it, or set PREFECT_HOME"
    assert second.returncode == 2 and second.stderr.startswith(used) and len(second.stderr.splitlines()) == 1

    ui_settings = urllib.request.urlopen(up.url.replace("/api", "/ui-settings"), timeout=10).read()
    assert b'"api_url":"/api"' in ui_settings, "a browser on another machine could not reach the server"
    request = {"state": {"type": "SCHEDULED"}, "job_variables": {"command": f"touch {tmp_path / 'ran'}"}}
    path = f"/deployments/{up.deployment('mnist/smoke')['id']}/create_flow_run"
    with pytest.raises(urllib.error.HTTPError, match="401"):  # as a web page would ask
        Server(up.port).api("POST", path, request)
    up.api("POST", path, request)
    await_that((tmp_path / "ran").exists, limit_s=120)
    up.press_ctrl_c()
