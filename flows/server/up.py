"""`make up`: run a Prefect server, the deployments of prefect.yaml and a worker for them on one machine."""

import contextlib
import os
import secrets
import shlex
import signal
import socket
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from storage import terminal
from storage.exits import refused_if_invalid
from storage.process import LOOPBACK
from storage.uri import parse_root
from tasks.runners.child import Child

_WORKER = f"make-up-{socket.gethostname()}"
"""Worker name; identifies the runs that end with this `make up`."""
_USER = "up:"
"""Start of a random password; it only tells that `make up` made it."""
_LEASE_STORAGE = "prefect.server.concurrency.lease_storage.filesystem"
"""Keeps the leases of running flow runs in PREFECT_HOME; with Prefect's default a restarted server crashes the runs."""
FILE = "make-up.env"
"""File in PREFECT_HOME with the server's address and password, for a shell; only its owner can read it."""


def main(host: str, port: int) -> int:
    """Run until Ctrl-C and return 0; return 1 if the server or worker stops; exit with 2 for an invalid request."""
    with refused_if_invalid():
        _check(host, port)
    ui = f"http://{f'[{host}]' if ':' in host else host}:{port}"
    url = _name_server(ui)
    print(f"starting Prefect's server on {url}", flush=True)
    from prefect.settings import PREFECT_API_AUTH_STRING, get_current_settings, temporary_settings

    from flows.server import deploy, report_server
    from flows.server.temporary_server import await_server, check_home
    from tasks.planning.make_plan import default_storage

    with contextlib.ExitStack() as stack:
        with refused_if_invalid():
            with contextlib.chdir(os.environ.get("PIPELINE_CHECKOUT") or deploy.CHECKOUT):  # as the worker's runs are
                entries, root = deploy.read(), parse_root(default_storage())
            check_home()
            password = stack.enter_context(_claimed(get_current_settings().home, url))
        os.environ.update(PREFECT_API_AUTH_STRING=password, PREFECT_SERVER_API_AUTH_STRING=password)
        stack.enter_context(temporary_settings({PREFECT_API_AUTH_STRING: password}))
        signal.signal(signal.SIGTERM, signal.default_int_handler)  # a service manager stops it this way
        stack.enter_context(contextlib.suppress(KeyboardInterrupt))
        server = stack.enter_context(_running("server", "start", "--host", host, "--port", str(port)))
        await_server(server, f"{url}/health")
        _tell([deploy.apply(entries)])
        reports = "not served to other machines: serve the folder reports yourself"
        if host in LOOPBACK:
            reports = f"{stack.enter_context(report_server.serving(root, port + 1))} ({root})"
        _release(was_stopped=False)  # of a `make up` that died, or whose server ended before its worker
        stack.push(lambda kind, *_: _release(was_stopped=kind is KeyboardInterrupt))
        worker = stack.enter_context(_running("worker", "start", "--pool", "pipeline", "--name", _WORKER))
        file = get_current_settings().home / FILE
        shown = password if password.startswith(_USER) else f"in {file}"  # a password that the user set is not logged
        print(_READY.format(ui=ui, password=shown, url=url, reports=reports, file=shlex.quote(str(file))), flush=True)
        _watch(server, worker)
    return 0


def _name_server(ui: str) -> str:
    """Make this process and its children use the server whose UI is at `ui`; return its API URL.

    Must run before Prefect is imported, which reads its settings then and starts a temporary server if none is set.
    """
    assert "prefect" not in sys.modules
    os.environ["PREFECT_API_URL"] = url = f"{ui}/api"
    os.environ.setdefault("PREFECT_UI_API_URL", "/api")  # whatever name the browser has for this machine
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    os.environ.setdefault("DO_NOT_TRACK", "1")  # without it Prefect prints that it collects usage data
    os.environ.setdefault("PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE", _LEASE_STORAGE)
    return url


@contextlib.contextmanager
def _claimed(home: Path, url: str) -> Iterator[str]:
    """Keep `home` from every other `make up`; yield the password, which is kept in its `FILE`.

    There is always a password: any web page and any user of the machine can reach a server on loopback.

    Raises `ValueError` if another `make up` uses `home`.
    """
    path = home / FILE
    try:
        lock = FileLock(path, mode=0o600).acquire(blocking=False)
    except Timeout:
        other, advice = _read(path).get("PREFECT_API_URL", ""), "stop it, or set PREFECT_HOME to another folder"
        raise ValueError(f"PREFECT_HOME={home} is used by another `make up`, {other}: {advice}") from None
    with lock:
        path.chmod(0o600)
        password = os.environ.get("PREFECT_SERVER_API_AUTH_STRING") or _read(path).get("PREFECT_API_AUTH_STRING")
        password = password or f"{_USER}{secrets.token_hex(16)}"
        if not password.isascii():
            raise ValueError("PREFECT_SERVER_API_AUTH_STRING must be ASCII: the server compares nothing else")
        path.write_text(f"export PREFECT_API_URL={url}\nexport PREFECT_API_AUTH_STRING={shlex.quote(password)}\n")
        yield password


def _read(path: Path) -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(path.read_text()) if "=" in word)


_READY = """
  UI        {ui}
  password  {password}
  API       {url}
  reports   {reports}

  in another terminal:
    . {file}
    .venv/bin/prefect deployment run mnist/smoke --watch

  Ctrl-C stops everything
"""


@contextlib.contextmanager
def _running(name: str, *words: str) -> Iterator[Child]:
    env = os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200"}
    child = Child([sys.executable, "-m", "prefect", name, *words], env=env, grace_s=10.0)
    try:
        yield child
    finally:
        print(f"stopping the {name}", flush=True)
        child.end()


def _release(*, was_stopped: bool) -> None:
    """Return the runs of the worker, which does not run, to the queue."""
    from prefect.client.orchestration import get_client

    from flows.server import watch

    with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # the server may be gone
        _tell(watch.release(client, worker=_WORKER, was_stopped=was_stopped))


def _tell(lines: Iterable[str]) -> None:
    terminal.show_lines(f"  {line}" for line in lines)


def _watch(server: Child, worker: Child) -> None:
    """Print the worker's output, and watch over the runs; raise `RuntimeError` if server or worker ends."""
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
    if not host:
        raise ValueError("--host is empty; omit it, or name an address to listen on")
    for address, number in ((host, port), ("127.0.0.1", port + 1)):
        bound(address, number, advice="choose another (reports get the next one)").close()


def bound(host: str, port: int, *, advice: str = "choose another") -> socket.socket:
    """Return a socket that nobody else can listen at; raise `ValueError` with `advice` if it is not free."""
    reserved = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host, port))
    except OSError as error:
        reserved.close()
        raise ValueError(f"--port {port} cannot be used on {host!r}: {error.strerror}; {advice}") from None
    return reserved
