"""`make up`: run a Prefect server, the deployments of prefect.yaml and a worker for them on one machine."""

import contextlib
import os
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator

from storage import terminal
from storage.exits import refused_if_invalid
from storage.uri import parse_root
from tasks.runners.child import Child

_WORKER = f"make-up-{socket.gethostname()}"
"""Worker name; identifies the runs that end with this `make up`."""
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Hosts that only this machine can reach."""
_LEASE_STORAGE = "prefect.server.concurrency.lease_storage.filesystem"
"""Keeps the leases of running flow runs in PREFECT_HOME; with Prefect's default a restarted server crashes the runs."""


def main(host: str, port: int) -> int:
    """Run until Ctrl-C and return 0; return 1 if the server or worker stops; exit with 2 for an invalid request."""
    with refused_if_invalid():
        _check(host, port)
    url = _name_server(host, port)
    print(f"starting Prefect's server on {url}", flush=True)
    from flows.server import deploy, report_server
    from flows.server.temporary_server import await_server
    from tasks.planning.make_plan import default_storage

    with refused_if_invalid():
        entries = deploy.read()
        with contextlib.chdir(os.environ.get("PIPELINE_CHECKOUT") or deploy.CHECKOUT):  # as the worker's runs are
            root = parse_root(default_storage())
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service manager stops it this way
    with (
        contextlib.suppress(KeyboardInterrupt),
        _running("server", "start", "--host", host, "--port", str(port)) as server,
    ):
        await_server(server, f"{url}/health")
        _tell([deploy.apply(entries)])
        with contextlib.ExitStack() as stack:
            reports = "not served to other machines: serve them yourself (docs/operating.md)"
            if host in _LOOPBACK:
                reports = f"{stack.enter_context(report_server.serving(root, port + 1))} ({root})"
            worker = stack.enter_context(_worker())
            print(_READY.format(ui=f"http://{host}:{port}", url=url, reports=reports), flush=True)
            _watch(server, worker)
    return 0


def _name_server(host: str, port: int) -> str:
    """Make this process and its children use the server at `host` and `port`; return its API URL.

    Must run before Prefect is imported, which reads its settings then and starts a temporary server if none is set.
    """
    assert "prefect" not in sys.modules
    url = f"http://{host}:{port}/api"
    os.environ["PREFECT_API_URL"] = url
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")  # without it Prefect prints that it collects usage data
    os.environ.setdefault("PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE", _LEASE_STORAGE)
    if auth := os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        os.environ.setdefault("PREFECT_API_AUTH_STRING", auth)
    return url


_READY = """
  UI        {ui}
  API       {url}
  reports   {reports}

  in another terminal:
    export PREFECT_API_URL={url}
    .venv/bin/prefect deployment run mnist/smoke --watch

  Ctrl-C stops everything
"""


@contextlib.contextmanager
def _running(name: str, *words: str) -> Iterator[Child]:
    """Run `prefect NAME WORDS...` as a child process; stop it when the block ends."""
    env = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    child = Child([sys.executable, "-m", "prefect", name, *words], env=env, grace_s=10.0)
    try:
        yield child
    finally:
        print(f"stopping the {name}", flush=True)
        child.end()


@contextlib.contextmanager
def _worker() -> Iterator[Child]:
    """Run the worker; after Ctrl-C, return the runs that it leaves to the queue."""
    from prefect.client.orchestration import get_client

    from flows.server import watch

    try:
        with _running("worker", "start", "--pool", "pipeline", "--name", _WORKER) as worker:
            yield worker
    except KeyboardInterrupt:
        with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # the server may be gone
            _tell(watch.release(client, worker=_WORKER))
        raise


def _tell(lines: Iterable[str]) -> None:
    for line in lines:
        terminal.show(f"  {line}")


def _watch(server: Child, worker: Child) -> None:
    """Print the worker's output, and watch over the runs, until Ctrl-C.

    Raises `RuntimeError` if either ends.
    """
    from flows.server import watch

    runs, looked = watch.Watch(), time.monotonic()
    while server.running and worker.running:
        sys.stdout.write(terminal.printable(worker.new_output()))
        sys.stdout.flush()
        if time.monotonic() - looked > watch.LOOK_S:
            _tell(runs.look())
            looked = time.monotonic()
        time.sleep(0.5)
    ended, name = (worker, "worker") if server.running else (server, "server")
    raise RuntimeError(f"the {name} stopped unexpectedly; its output:\n{ended.output()[-3000:]}")


def _check(host: str, port: int) -> None:
    """Raise `ValueError` if this process cannot or must not listen there."""
    if host not in _LOOPBACK and not os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        raise ValueError(
            f"--host {host!r} is reachable from other machines: set PREFECT_SERVER_API_AUTH_STRING=user:password first"
        )
    for address, number in ((host, port), ("127.0.0.1", port + 1)):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, number))
            except OSError as error:
                trouble = f"{number} cannot be used on {address!r}: {error.strerror}"
                raise ValueError(f"--port {trouble}; choose another (reports get the next one)") from None
