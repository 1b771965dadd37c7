"""The first seconds of a command where others' settings matter: proxies, Prefect's home, a terminal that closes."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from flows.server.temporary_server import check_api
from tests.runs import CHECKOUT, await_that, prefect_home, processes_with

_RUN = """
import sys, time
from flows.cli import start
from flows.cli.options import FlowOptions
from storage.exits import guarded

def __getattr__(name):
    if name != "short":
        raise AttributeError(name)
    from prefect import flow
    from prefect.artifacts import create_markdown_artifact

    @flow
    def short(seconds):
        create_markdown_artifact("through the API", key="short")
        print("begun", flush=True)
        time.sleep(seconds)

    return short

options, seconds = FlowOptions(storage=sys.argv[1], workers=0, as_json=True), float(sys.argv[2])
sys.exit(guarded(lambda: start.start(None, options, flow="__main__:short", seconds=seconds)))
"""


def start(folder: Path, seconds: float = 0, /, **env: str) -> "subprocess.Popen[str]":
    """A run of a flow that does nothing for a while, with a temporary Prefect server."""
    others = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    others.pop("PREFECT_API_URL", None)
    return subprocess.Popen(
        [sys.executable, "-c", _RUN, str(folder), str(seconds)],
        cwd=CHECKOUT,
        env=others | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # what `nohup` starts ignores it
    )


@pytest.fixture
def home(tmp_path: Path, integration: None) -> Path:
    prefect_home(tmp_path / "home")
    return tmp_path / "home"


@pytest.mark.slow
def test_no_request_to_the_temporary_server_goes_through_a_proxy(tmp_path: Path, home: Path) -> None:
    nothing_listens, socks = "http://127.0.0.1:1", "socks5://127.0.0.1:1"
    proxies = {"HTTP_PROXY": nothing_listens, "http_proxy": nothing_listens, "ALL_PROXY": socks}
    run = start(tmp_path, **proxies | {"PREFECT_HOME": str(home)})
    output, errors = run.communicate(timeout=120)
    assert (run.returncode, output.splitlines()[:1]) == (0, ["begun"]), errors
    assert errors.startswith("starting Prefect ...\n")


@pytest.mark.slow
def test_a_home_of_another_prefect_ends_a_run_with_prefects_message_and_how_to_use_another(
    tmp_path: Path, home: Path
) -> None:
    with contextlib.closing(sqlite3.connect(home / "prefect.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0123456789ab'")
        connection.commit()
    run = start(tmp_path, PREFECT_HOME=str(home))
    _, line, *output, _ = run.communicate(timeout=120)[1].splitlines()
    assert run.returncode == 1 and f"did not start; it uses PREFECT_HOME={home}, set PREFECT_HOME to" in line
    assert "Can't locate revision identified by '0123456789ab'" in "\n".join(output)


def test_a_home_that_cannot_be_written_to_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    says = f"^PREFECT_HOME={tmp_path / 'file'}: it is not writable; set PREFECT_HOME to another folder$"
    with temporary_settings({PREFECT_HOME: tmp_path / "file"}), pytest.raises(ValueError, match=says):
        check_api()


def test_the_temporary_server_of_a_run_asks_for_a_password(prefect_process: dict[Any, Any]) -> None:
    url = prefect_process[PREFECT_API_URL]
    assert url.startswith("http://127.0.0.1:")
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(f"{url}/admin/version", timeout=10)
    with temporary_settings(prefect_process), get_client(sync_client=True) as client:
        assert client.api_version()


@pytest.mark.slow
def test_a_closed_terminal_ends_a_run_and_everything_that_it_started(tmp_path: Path, home: Path) -> None:
    run = start(tmp_path, 600, PREFECT_HOME=str(home))
    assert run.stdout is not None and run.stdout.readline() == "begun\n"
    run.send_signal(signal.SIGHUP)
    assert run.wait(60) == -signal.SIGHUP
    await_that(lambda: not processes_with(f"PREFECT_HOME={home}"), limit_s=30)
