"""A Prefect API for one run of the command line, where the user has none."""

import contextlib
import os
import secrets
import socket
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

from storage.uri import masked
from tasks.child import Child

_START_LIMIT_S = 120
_ASK_S = 5
"""How long a server may take to answer."""


@contextlib.contextmanager
def own_server(meanwhile: Callable[[], object] = lambda: None) -> Iterator[bool]:
    """A Prefect API to talk to: the configured one, else a server on loopback that ends with this process (true).

    The server asks for a password, which nobody else has: other users of the machine can reach loopback too. Prefect's
    own temporary server would survive a SIGKILL of its owner. `meanwhile` is called while it starts.

    Raises `RuntimeError` when it does not start.
    """
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_URL, get_current_settings, temporary_settings

    if get_current_settings().api.url:
        yield False
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    password = f"run:{secrets.token_hex(32)}"
    env = os.environ | {
        "PREFECT_SERVER_API_AUTH_STRING": password,
        "PREFECT_UI_ENABLED": "0",
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
    }
    command = [sys.executable, str(Path(__file__).with_name("start_server.py")), "--factory"]
    command += ["prefect.server.api.server:create_app", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--log-level", "error", "--lifespan", "on"]
    child = Child(command, env=env)
    try:
        meanwhile()
        await_server(child, f"http://127.0.0.1:{port}/api/health")
        ours = {PREFECT_API_URL: f"http://127.0.0.1:{port}/api", PREFECT_API_AUTH_STRING: password}
        with temporary_settings(ours):
            try:
                yield True
            finally:
                _flush()
    finally:
        child.end()


def check_api() -> str:
    """Which Prefect API a run will talk to; raises `ValueError` when the configured one does not answer, or refuses."""
    from prefect.client.orchestration import get_client
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, get_current_settings, temporary_settings

    url = get_current_settings().api.url
    if not url:
        return "a server of its own for as long as the run lasts"
    advice = "check PREFECT_API_URL and PREFECT_API_AUTH_STRING, or leave them out for a server of its own"
    try:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(httpx_settings={"timeout": _ASK_S}, sync_client=True) as client,
        ):
            return f"{masked(url)} answers, version {client.api_version()}"
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"PREFECT_API_URL={masked(url)}: no Prefect API to work with ({masked(reason)}); {advice}"
        ) from None


def _flush() -> None:
    """Send what Prefect still holds for its API, before there is none: else it tries for a minute at exit."""
    from prefect.events.worker import EventsWorker
    from prefect.logging.handlers import APILogWorker

    APILogWorker.drain_all(timeout=10)
    EventsWorker.drain_all(timeout=10)


def await_server(child: Child, url: str) -> None:
    """Return once a server answers at `url`; raises `RuntimeError` with what it wrote when it does not."""
    deadline = time.monotonic() + _START_LIMIT_S
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it is on this machine
    while child.running and time.monotonic() < deadline:
        try:
            with directly.open(url, timeout=5):
                return
        except urllib.error.HTTPError:  # it asks for a password: it is up
            return
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"Prefect's server did not start; it wrote:\n{child.output()[-2000:]}")
