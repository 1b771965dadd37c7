"""`make up`: everything on one machine: a Prefect server, the deployments of prefect.yaml and a worker for them."""

import argparse
import contextlib
import errno
import ipaddress
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from uuid import UUID

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # works from anywhere, installed or not

from tasks.child import Child

_POOL = "pipeline"
_SERVER = ("server", "start", "--host")
_MARK = "PIPELINE_UP"
"""Environment variable by which the processes of one `make up` are known."""
_EPILOG = """\
Stop it with Ctrl-C: runs under way end as Crashed, and go on where they stopped when they are started again.
Runs, logs and schedules are kept in PREFECT_HOME (~/.prefect). The server listens on this machine only; for others,
--host needs PREFECT_SERVER_API_AUTH_STRING (docs/operating.md)."""


def main() -> int:
    """0 after Ctrl-C, 1 when a part of it ended by itself, 2 for a wrong request."""
    from flows.cli import guarded

    return guarded(lambda: _main(_parser().parse_args()))


def _parser() -> argparse.ArgumentParser:
    from flows import cli

    parser = cli.Parser(
        prog="python flows/up.py",
        description="Start a Prefect server, register the deployments of prefect.yaml and run a worker for them.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=int, default=4200, help="port of server and UI (default: %(default)s)")
    return parser


def _main(arguments: argparse.Namespace) -> int:
    from flows.cli import fail

    host, port = arguments.host, arguments.port
    if not host:
        fail("--host must be an address or a name, got nothing", code=2)
    if not _is_loopback(host) and not os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        fail(f"--host {host!r} lets others in: set PREFECT_SERVER_API_AUTH_STRING=user:password first", code=2)
    if not 0 < port < 65536:
        fail(f"--port must be 1 to 65535, got {port}", code=2)
    if trouble := _trouble(host, port):
        fail(trouble, code=2)
    from flows import automations, deployments
    from flows.server import await_server

    try:
        deployments.declared()
        automations.webhook_url()
    except ValueError as error:
        fail(str(error), code=2)
    url = f"http://{host}:{port}/api"
    os.environ["PREFECT_API_URL"] = url
    os.environ.setdefault("PREFECT_SERVER_ANALYTICS_ENABLED", "false")
    if auth := os.environ.get("PREFECT_SERVER_API_AUTH_STRING"):
        os.environ.setdefault("PREFECT_API_AUTH_STRING", auth)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as a service manager ends it
    print(f"starting Prefect's server on {url}", flush=True)
    with contextlib.suppress(KeyboardInterrupt), _running("server", *_SERVER, host, "--port", str(port)) as server:
        await_server(server, f"{url}/health")
        for line in deployments.apply():
            print(f"  {line}", flush=True)
        under_way: set[str] = set()
        try:
            with _running("worker", "worker", "start", "--pool", _POOL) as worker:
                print(_READY.format(ui=f"http://{host}:{port}", url=url), flush=True)
                try:
                    _watch(server, worker)
                finally:
                    under_way = _runs_here()
        finally:
            _mark_ended(under_way)
    return 0


_READY = """
  UI        {ui}
  API       {url}

  in another terminal:
    export PREFECT_API_URL={url}
    .venv/bin/prefect deployment run mnist/smoke --watch

  Ctrl-C stops everything
"""


@contextlib.contextmanager
def _running(name: str, *words: str) -> Iterator[Child]:
    """A part of Prefect as a process of its own, ended at the end."""
    child = Child([sys.executable, "-m", "prefect", *words], env=_env(), grace_s=10.0)
    try:
        yield child
    finally:
        print(f"stopping the {name}", flush=True)
        child.end()


def _runs_here() -> set[str]:
    """The flow runs that the worker started and that still run; not those of other workers of the same server."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError, ValueError):
            variables = dict(one.split("=", 1) for one in entry.read_bytes().decode().split("\0") if one)
            if variables.get(_MARK) == str(os.getpid()) and "PREFECT__FLOW_RUN_ID" in variables:
                found.add(variables["PREFECT__FLOW_RUN_ID"])
    return found


def _mark_ended(runs: set[str]) -> None:
    """Give the runs that ended with the worker their state: without it they would hold their deployment's only slot."""
    from prefect.client.orchestration import get_client
    from prefect.states import Crashed

    with contextlib.suppress(Exception), get_client(sync_client=True) as client:  # the server may be gone already
        for run in [client.read_flow_run(UUID(one)) for one in runs]:
            if run.state is not None and not run.state.is_final():
                print(f"  run {run.name} ended with the worker: Crashed", flush=True)
                client.set_flow_run_state(run.id, Crashed(message="the worker was stopped"), force=True)


def _env() -> Mapping[str, str]:
    return os.environ | {"PYTHONUNBUFFERED": "1", "COLUMNS": "200", _MARK: str(os.getpid())}


def _watch(server: Child, worker: Child) -> None:
    """Show what the worker does until it or the server ends by itself; Ctrl-C ends it from outside."""
    while server.running and worker.running:
        sys.stdout.write(worker.new_output())
        sys.stdout.flush()
        time.sleep(0.5)
    ended, name = (worker, "worker") if server.running else (server, "server")
    raise RuntimeError(f"the {name} ended by itself; it wrote:\n{ended.output()[-3000:]}")


def _is_loopback(host: str) -> bool:
    """Whether only this machine can reach what listens on `host`, whatever it is called."""
    try:
        found = {info[4][0] for info in socket.getaddrinfo(host, None)}
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(str(address).partition("%")[0]).is_loopback for address in found)


def _trouble(host: str, port: int) -> str:
    """Why nobody can listen there, nothing when somebody can."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return f"--port {port} is in use: choose another with --port, or stop what listens there"
            return f"nobody can listen at --host {host!r} --port {port}: {error.strerror}; choose others"
    return ""


if __name__ == "__main__":
    raise SystemExit(main())
