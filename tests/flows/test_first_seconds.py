"""The first seconds of a command where others' settings matter: proxies, Prefect's home, a terminal that closes."""

import contextlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from prefect.settings import PREFECT_HOME, PREFECT_SERVER_DATABASE_CONNECTION_URL, temporary_settings

from flows.server.temporary_server import ServerFailed, await_server, check_home
from storage.process import reach_loopback_directly
from tasks.runners.child import Child
from tests.runs import CHECKOUT, await_that, prefect_home, processes_with

_RUN = """
import sys, time
from flows.cli import start
from storage.exits import guarded

def flow_of(request, plan):
    from prefect import flow
    from prefect.artifacts import create_markdown_artifact

    @flow
    def short(storage, workers, seconds):
        create_markdown_artifact("through the API", key="short")
        print("begun", flush=True)
        time.sleep(seconds)

    return short

request = {"storage": sys.argv[1], "workers": 0, "seconds": float(sys.argv[2])}
sys.exit(guarded(lambda: start.start(flow_of, request, as_json=True)))
"""
_FAILS = "import sys; sys.exit('Traceback (most recent call last):\\n  File \"x.py\"\\n' * 50 + {last!r})"


def start(folder: Path, *, seconds: float = 0, **env: str) -> "subprocess.Popen[str]":
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
def home(tmp_path: Path) -> Path:
    prefect_home(tmp_path / "home")
    return tmp_path / "home"


@contextlib.contextmanager
def proxy() -> Iterator[tuple[str, list[str]]]:
    """The address of a proxy, and every request line that it got."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def __getattr__(self, name: str) -> object:
            if not name.startswith("do_"):
                raise AttributeError(name)
            requests.append(self.requestline)
            return lambda: self.send_error(502)

        def log_message(self, *arguments: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
        server.shutdown()


def test_no_request_to_the_temporary_server_goes_through_a_proxy(tmp_path: Path, home: Path) -> None:
    with proxy() as (address, requests):
        socks = "socks5://127.0.0.1:1"
        run = start(tmp_path, PREFECT_HOME=str(home), HTTP_PROXY=address, http_proxy=address, ALL_PROXY=socks)
        output, errors = run.communicate(timeout=120)
    assert (run.returncode, output.splitlines()[:1], requests) == (0, ["begun"], []), errors
    assert errors.startswith("starting Prefect ...\n")


def test_what_need_not_go_through_a_proxy_still_need_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("no_proxy", raising=False)
    for before, after in (("intern.example,127.0.0.1", "intern.example,127.0.0.1,localhost,::1"), ("*", "*")):
        monkeypatch.setenv("NO_PROXY", before)
        reach_loopback_directly()
        reach_loopback_directly()
        assert {os.environ["NO_PROXY"], os.environ.get("no_proxy", after)} == {after}
        monkeypatch.delenv("no_proxy", raising=False)


def test_a_home_of_another_prefect_is_refused_by_name_before_a_run_and_by_check(tmp_path: Path, home: Path) -> None:
    with contextlib.closing(sqlite3.connect(home / "prefect.db")) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '0123456789ab'")
        connection.commit()
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    command = ["flows/pipeline.py", "--recipe", "mnist-sample-resnet18", "--storage", str(tmp_path / "root"), "--check"]
    checked = subprocess.run(
        [sys.executable, *command],
        cwd=CHECKOUT,
        env=environment | {"PREFECT_HOME": str(home)},
        capture_output=True,
        text=True,
    )
    run = start(tmp_path, PREFECT_HOME=str(home))
    _, refused = run.communicate(timeout=120)[1].splitlines()
    for code, line in ((checked.returncode, checked.stdout.splitlines()[-1]), (run.returncode, refused)):
        assert code == 2 and f"PREFECT_HOME={home}: prefect.db was written by another version of Prefect" in line
        assert line.endswith("set PREFECT_HOME to another folder")


def test_a_home_that_cannot_hold_a_database_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "garbage").mkdir()
    (tmp_path / "garbage" / "prefect.db").write_text("no database" * 100)
    for name, reason in {"file": "not a folder", "garbage": "file is not a database"}.items():
        place = tmp_path / name
        settings = {
            PREFECT_HOME: place,
            PREFECT_SERVER_DATABASE_CONNECTION_URL: f"sqlite+aiosqlite:///{place}/prefect.db",
        }
        with temporary_settings(settings), pytest.raises(ValueError, match=f"^PREFECT_HOME={place}.*{reason}.*another"):
            check_home()


def test_a_server_that_does_not_start_or_is_slow_is_one_line_with_its_last_error_and_advice() -> None:
    last, few = "sqlalchemy.exc.OperationalError: unable to open database file", "RuntimeError: can't start new thread"
    for program, says in (
        (_FAILS.format(last=last), f"{last}; set PREFECT_HOME"),
        (_FAILS.format(last=few), f"{few}; .*ulimit -u"),
        (
            "import time; time.sleep(60)",
            r"no answer within 0\.5 s; the machine may be busy: run the same command again",
        ),
    ):
        child = Child([sys.executable, "-c", program], env=os.environ)
        with pytest.raises(ServerFailed, match=says) as failed:
            await_server(child, "http://127.0.0.1:1/api/health", limit_s=60 if "exit" in program else 0.5)
        child.end()
        assert len(str(failed.value).splitlines()) == 1


def test_a_closed_terminal_ends_a_run_with_a_line_and_everything_that_it_started(tmp_path: Path, home: Path) -> None:
    run = start(tmp_path, seconds=600, PREFECT_HOME=str(home))
    assert run.stdout is not None and run.stdout.readline() == "begun\n"
    for _ in range(2):  # the shell and the kernel each send one
        run.send_signal(signal.SIGHUP)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 129, errors
    assert errors.splitlines()[-1] == "The terminal was closed. Run the same command again to resume."
    await_that(lambda: not processes_with(f"PREFECT_HOME={home}"), limit_s=30)
