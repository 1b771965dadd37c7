"""`make up`: everything on one machine: a Prefect server, the deployments of prefect.yaml and a worker for them."""

import argparse
import contextlib
import os
import signal
import socket
import sys
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # works from anywhere, installed or not

from tasks.child import Child

_START_LIMIT_S = 120
_POOL = "pipeline"
_WORKER_GRACE_S = 40.0
"""How long the worker may take to end: it gives the runs under way 30 s of it."""
_EPILOG = """\
Stop it with Ctrl-C: runs under way are ended first, and go on where they stopped when they are started again.
Runs, logs and schedules are kept in PREFECT_HOME (~/.prefect). The server listens on this machine only; for others,
--host needs PREFECT_SERVER_API_AUTH_STRING (docs/operating.md)."""


def main() -> int:
    """0 after Ctrl-C, 1 when a part of it ended by itself, 2 for a wrong request."""
    from flows.cli import guarded

    return guarded(lambda: _main(_parser().parse_args()))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python flows/up.py",
        description="Start a Prefect server, register the deployments of prefect.yaml and run a worker for them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=4200, help="port of server and UI (default: %(default)s)")
    return parser


def _main(arguments: argparse.Namespace) -> int:
    from flows.cli import fail

    host, port = arguments.host, arguments.port
    if not host.startswith("127.") and host != "localhost" and not os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        fail(f"--host {host} lets others in: set PREFECT_SERVER_API_AUTH_STRING=user:password first", code=2)
    if _taken(host, port):
        fail(f"--port {port} is in use: choose another with --port, or stop what listens there", code=2)
    url = f"http://{host}:{port}/api"
    os.environ["PREFECT_API_URL"] = url
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    if auth := os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        os.environ.setdefault("PREFECT_API_AUTH_STRING", auth)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as a service manager ends it
    with _Processes() as processes:
        print(f"starting Prefect's server on {url}", flush=True)
        server = processes.start("server", "server", "start", "--host", host, "--port", str(port))
        _await(server, f"{url}/health")
        from flows import deployments

        for line in deployments.apply():
            print(f"  {line}", flush=True)
        worker = processes.start("worker", "worker", "start", "--pool", _POOL, grace_s=_WORKER_GRACE_S)
        print(_READY.format(ui=f"http://{host}:{port}", url=url), flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            _watch(server, worker)
    return 0


_READY = """
  UI        {ui}
  API       {url}

  in another terminal:
    export PREFECT_API_URL={url}
    .venv/bin/prefect deployment run mnist/smoke --watch

  Ctrl-C stops everything
"""


class _Processes:
    """Started processes; the last one started ends first."""

    def __init__(self) -> None:
        self._started: list[tuple[str, Child]] = []

    def __enter__(self) -> "_Processes":
        return self

    def start(self, name: str, *words: str, grace_s: float = 10.0) -> Child:
        child = Child([sys.executable, "-m", "prefect", *words], env=_env(), grace_s=grace_s)
        self._started.append((name, child))
        return child

    def __exit__(self, *_: object) -> None:
        for name, child in reversed(self._started):
            print(f"stopping the {name}", flush=True)
            child.end()


def _env() -> Mapping[str, str]:
    return os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"}


def _watch(server: Child, worker: Child) -> None:
    """Show what the worker does until it or the server ends by itself; Ctrl-C ends it from outside."""
    while server.running and worker.running:
        sys.stdout.write(worker.new_output())
        sys.stdout.flush()
        time.sleep(0.5)
    ended, name = (worker, "worker") if server.running else (server, "server")
    raise RuntimeError(f"the {name} ended by itself; it wrote:\n{ended.output()[-3000:]}")


def _taken(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return True
    return False


def _await(server: Child, url: str) -> None:
    deadline = time.monotonic() + _START_LIMIT_S
    while server.running and time.monotonic() < deadline:
        with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
            return
        time.sleep(0.2)
    raise RuntimeError(f"Prefect's server did not start; it wrote:\n{server.output()[-3000:]}")


if __name__ == "__main__":
    raise SystemExit(main())
