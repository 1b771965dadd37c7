"""A Prefect server and worker as processes of their own, as an operator runs them, seen through the server's API."""

import base64
import contextlib
import functools
import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from tenacity import retry, retry_if_exception, stop_after_attempt, wait_fixed

from tasks.runners.child import Child
from tests.runs import CHECKOUT, await_that, kill_process, processes_with, repeatedly

CANARY = "canary-4f1c7b2e"
"""A secret that every process of the Prefect system is given."""
_PREFECT, _FLOWS = [sys.executable, "-m", "prefect"], [sys.executable, "-m", "flows"]
_FIRST_PORT, _END_PORT, _PORTS_A_WORKER = 20_000, 32_768, 4_000
"""Below the ports that the kernel gives to connections, above those of Ray's workers."""
_API_TIMEOUT_S = 90
"""Longer than the 60 s for which the server waits for the lock of its SQLite before it answers 503."""
_TRAINED = ("Promoted", "Rejected", "Unchanged", "NothingNew")
_ENDED = (*_TRAINED, "Completed", "Failed", "TimedOut", "GivenUp", "Cancelled")


def _is_busy(error: BaseException) -> bool:
    return isinstance(error, urllib.error.HTTPError) and error.code == 503


class Server:
    """A Prefect server on a port of the loopback interface, seen through its API; `auth` is user:password."""

    def __init__(self, port: int, *, auth: str = "") -> None:
        self.port = port
        self._headers = {"Content-Type": "application/json"}
        if auth:
            self._headers["Authorization"] = f"Basic {base64.b64encode(auth.encode()).decode()}"
        self.url = f"http://127.0.0.1:{port}/api"

    def answers(self) -> bool:
        """Whether it is up."""
        with contextlib.suppress(OSError):
            return bool(self.api("GET", "/health"))
        return False

    @retry(retry=retry_if_exception(_is_busy), wait=wait_fixed(0.5), stop=stop_after_attempt(60), reraise=True)
    def api(self, method: str, path: str, body: Any = None) -> Any:
        """One call of the server's API, again while its database is busy, as Prefect's own client does."""
        content = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data=content, method=method, headers=self._headers)
        with urllib.request.urlopen(request, timeout=_API_TIMEOUT_S) as answer:
            text = answer.read()
        return json.loads(text) if text else None

    def deployment(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api("GET", f"/deployments/name/{name}")
        return found

    def deployments(self) -> set[str]:
        flows = {flow["id"]: flow["name"] for flow in self.api("POST", "/flows/filter", {})}
        return {f"{flows[one['flow_id']]}/{one['name']}" for one in self.api("POST", "/deployments/filter", {})}

    def start(self, name: str, *, minutes_ago: float = 0, **parameters: Any) -> str:
        """A run of deployment `name`, due since `minutes_ago`; its id."""
        due = datetime.now(UTC) - timedelta(minutes=minutes_ago)
        state = {"type": "SCHEDULED", "state_details": {"scheduled_time": due.isoformat()}}
        body = {"state": state, "parameters": parameters, "enforce_parameter_schema": False}
        run: str = self.api("POST", f"/deployments/{self.deployment(name)['id']}/create_flow_run", body)["id"]
        return run

    def refusal(self, name: str, **parameters: Any) -> str:
        """Why the server creates no run of deployment `name` with these parameters."""
        body = {"state": {"type": "SCHEDULED"}, "parameters": parameters}
        try:
            self.api("POST", f"/deployments/{self.deployment(name)['id']}/create_flow_run", body)
        except urllib.error.HTTPError as error:
            return str(json.loads(error.read())["detail"])
        raise AssertionError(f"{name} with {parameters} was accepted")

    def state(self, run: str) -> dict[str, Any]:
        found: dict[str, Any] = self.api("GET", f"/flow_runs/{run}")["state"]
        return found

    def states(self, run: str) -> list[str]:
        """The names of all states of `run`, oldest first."""
        return [state["name"] for state in self.api("GET", f"/flow_run_states/?flow_run_id={run}")]

    def await_end(self, *runs: str, limit_s: float = 900) -> list[str]:
        """The names of the states in which `runs` ended; one that crashed has not, until it is given up."""
        await_that(lambda: all(self.state(run)["name"] in _ENDED for run in runs), limit_s=limit_s, interval_s=1)
        return [self.state(run)["name"] for run in runs]

    def await_state(self, run: str, name: str, *, limit_s: float = 240) -> str:
        """The message of the state of this name, once `run` is in it."""
        await_that(lambda: self.state(run)["name"] == name, limit_s=limit_s, interval_s=0.5)
        return str(self.state(run)["message"])

    def cancel_runs(self) -> None:
        """Cancel every run that has not ended, without waiting for a process."""
        unended = {"flow_runs": {"state": {"type": {"not_any_": ["COMPLETED", "FAILED", "CANCELLED"]}}}}
        for run in self.api("POST", "/flow_runs/filter", unended):
            self.api("POST", f"/flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLED"}, "force": True})

    def starts(self, run: str) -> int:
        """How often `run` was started."""
        return int(self.api("GET", f"/flow_runs/{run}")["run_count"])

    def await_start(self, run: str, number: int, *, limit_s: float = 240) -> None:
        """Return once `run` was started so often."""
        await_that(lambda: self.starts(run) == number, limit_s=limit_s, interval_s=0.5)

    def log(self, run: str) -> list[str]:
        """The log lines of a run that the server holds, oldest first."""
        lines: list[str] = []
        while True:
            body = {
                "logs": {"flow_run_id": {"any_": [run]}},
                "sort": "TIMESTAMP_ASC",
                "limit": 200,
                "offset": len(lines),
            }
            page = self.api("POST", "/logs/filter", body)
            lines += [line["message"] for line in page]
            if len(page) < 200:
                return lines

    def says(self, run: str, text: str) -> bool:
        return any(text in line for line in self.log(run))

    def artifacts(self, run: str) -> dict[str, Any]:
        """What the run's artifacts hold, by key; what a task returned has none."""
        found = self.api("POST", "/artifacts/filter", {"artifacts": {"flow_run_id": {"any_": [run]}}})
        return {one["key"]: one["data"] for one in found if one["key"]}

    def events(self, name: str) -> list[dict[str, Any]]:
        """The events of this name."""
        return list(self.api("POST", "/events/filter", {"filter": {"event": {"name": [name]}}})["events"])

    def engine(self, run: str) -> int:
        """The process that runs the flow of `run`."""
        return next(pid for pid, command in self.processes(run).items() if "prefect.engine" in command)

    def processes(self, run: str) -> dict[int, str]:
        """Every live process that the worker started for `run`, Ray's included."""
        return processes_with(f"PREFECT__FLOW_RUN_ID={run}")


class PrefectSystem(Server):
    """A running server, and a worker when one was started."""

    def __init__(self, folder: Path) -> None:
        super().__init__(free_port())
        self.env = os.environ | {
            "PREFECT_HOME": str(folder / "home"),
            "PREFECT_API_URL": self.url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "0",
            "PIPELINE_STORAGE": str(folder / "root"),
            "AWS_SECRET_ACCESS_KEY": CANARY,
            "COLUMNS": "200",
        }
        self._server = Child(
            [*_PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(self.port)], env=self.env
        )
        self._worker: Child | None = None
        await_that(self.answers, limit_s=120)
        self._watch = Child([*_FLOWS, "watch"], env=self.env, cwd=CHECKOUT)
        self._resending = contextlib.ExitStack()
        self._resending.enter_context(repeatedly(self._send_lost_events_again, interval_s=1))

    def _send_lost_events_again(self) -> None:
        """Send the events again that a busy SQLite has lost; a server with a separate worker should use Postgres."""
        for lost in Path(self.env["PREFECT_HOME"], "dlq").glob("*"):
            with contextlib.suppress(json.JSONDecodeError, OSError):  # it is being written, or the server is busy
                event = json.loads(json.loads(lost.read_bytes())["data"])
                again = {name: value for name, value in event.items() if name not in ("received", "follows")}
                if "event" in event:  # not an action, which is lost for good
                    self.api("POST", "/events", [again | {"id": str(uuid.uuid4())}])
                lost.unlink()

    def end(self) -> None:
        self.end_worker()
        self._resending.close()
        self._watch.end()
        self._server.end()

    def deploy(self, checkout: Path = CHECKOUT) -> str:
        """What `make deploy` prints in `checkout`."""
        answer = subprocess.run([*_FLOWS, "deploy"], env=self.env, cwd=checkout, capture_output=True, text=True)
        assert answer.returncode == 0, answer.stdout + answer.stderr
        return answer.stdout

    def start_worker(self) -> None:
        self._worker = Child([*_PREFECT, "worker", "start", "--pool", "pipeline"], env=self.env)

    def end_worker(self) -> None:
        """End the worker and all that it started, at once."""
        if self._worker is not None:
            self._worker.end()
            self._worker = None

    def kill_worker(self) -> None:
        """SIGKILL the worker alone, as the kernel does when memory runs out."""
        (pid,) = [pid for pid, command in processes_with(f"PREFECT_API_URL={self.url}").items() if _is_worker(command)]
        kill_process(pid)


def _is_worker(command: str) -> bool:
    return "worker start" in command and "child.py" not in command


def free_port() -> int:
    """A port of the loopback interface that is free; none twice, since it may be bound seconds later."""
    for port in _ports():
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError(f"no port below {_END_PORT} is left")


@functools.cache
def _ports() -> Iterator[int]:
    """Ports to try; those of two pytest workers begin apart, and those of two sessions at once too."""
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw2").removeprefix("gw"))
    return iter(range(_FIRST_PORT + worker % 3 * _PORTS_A_WORKER + os.getpid() % 30 * 100, _END_PORT))
