"""Temporary Prefect server for one run of the command line, used if no API is configured."""

import contextlib
import os
import secrets
import shutil
import socket
import sys
import time
import urllib.error
import urllib.request
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

from storage.exits import refuse
from storage.uri import is_web_address, redact, redact_text
from tasks.runners.child import Child

_START_LIMIT_S = 120
_SERVER = """
import gc
gc.disable()  # as in `storage.process.gc_paused`: the imports take seconds
import prefect.server.api.server, uvicorn
gc.freeze()
gc.enable()
uvicorn.main()
"""
"""Server process: its arguments are those of `uvicorn`."""
_LEAST_FREE = 2**20
"""Bytes that Prefect's database needs at least to take a write."""
_LAST_LINES = 15
"""Lines of a server's output to show if it does not start."""


class ServerFailed(RuntimeError):
    """A Prefect server did not start."""


def require_named_server() -> None:
    """End this command with exit code 2 unless PREFECT_API_URL names a server."""
    url = os.environ.get("PREFECT_API_URL")
    if url and not is_web_address(url):
        refuse(f"PREFECT_API_URL must be an address such as http://127.0.0.1:4200/api, got {redact(url)!r}")
    from prefect.settings import get_current_settings

    if not get_current_settings().api.url:
        refuse("PREFECT_API_URL is not set; set it to the address of your Prefect server, or start one with `make up`")


@contextlib.contextmanager
def own_server(meanwhile: Callable[[], object] = lambda: None) -> Iterator[bool]:
    """Provide a Prefect API: the configured one (yields False), else a temporary server on loopback (yields True).

    The server requires a random password, because other users of the machine can reach loopback too. It ends with this
    process; Prefect's own temporary server would survive a SIGKILL of its owner. `meanwhile` is called as it starts.

    Raises `ServerFailed` if the server does not start.
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
    command = [sys.executable, "-P", "-c", _SERVER]
    command += ["prefect.server.api.server:create_app", "--factory", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--log-level", "error", "--lifespan", "on"]
    child = Child(command, env=env)
    try:
        meanwhile()
        await_server(child, f"http://127.0.0.1:{port}/api/health")
        with temporary_settings({PREFECT_API_URL: f"http://127.0.0.1:{port}/api", PREFECT_API_AUTH_STRING: password}):
            try:
                yield True
            finally:  # else Prefect retries to send its queued logs and events for a minute at exit
                from prefect.events.worker import EventsWorker
                from prefect.logging.handlers import APILogWorker

                APILogWorker.drain_all(timeout=10)
                EventsWorker.drain_all(timeout=10)
    finally:
        child.end()


def check_home() -> None:
    """Raise `ValueError` if nothing can be written to PREFECT_HOME, which a server only calls an internal error."""
    from prefect.settings import get_current_settings

    home = get_current_settings().home
    is_writable = os.access(home, os.W_OK | os.X_OK)
    if not is_writable or shutil.disk_usage(home).free < _LEAST_FREE:
        problem = "its disk is full" if is_writable else "it is not writable"
        raise ValueError(f"PREFECT_HOME={home}: {problem}; set PREFECT_HOME to another folder")


def check_api() -> str:
    """Describe the Prefect API that a run will use; raise `ValueError` if it, or the temporary one's home, is unusable.

    Call it before anything else imports Prefect, which prints a long warning about a home that cannot be created.
    """
    warnings.filterwarnings("ignore", "Failed to create the Prefect home")
    from prefect.client.base import ServerType
    from prefect.client.orchestration import get_client
    from prefect.context import get_settings_context
    from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, get_current_settings, temporary_settings

    url = get_current_settings().api.url
    if not url:
        check_home()
        return "a temporary server for this run"
    profile = get_settings_context().profile
    origin = "the environment" if os.environ.get("PREFECT_API_URL") else f".env or prefect.toml in {Path.cwd()}"
    origin = f"Prefect's profile {profile.name}" if profile.settings.get(PREFECT_API_URL) == url else origin
    advice = (
        "correct it and PREFECT_API_AUTH_STRING or PREFECT_API_KEY, or set PREFECT_API_URL= (empty) to use a temporary "
        "server"
    )
    try:
        with (
            temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}),
            get_client(httpx_settings={"timeout": 5}, sync_client=True) as client,
        ):
            client.read_flows(limit=1)  # with the key; Prefect Cloud tells no version
            is_cloud = client.server_type is ServerType.CLOUD
            return f"{redact(url)} responds{'' if is_cloud else f', version {client.api_version()}'}"
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ValueError(
            f"PREFECT_API_URL={redact(url)}, from {origin}: no usable Prefect API ({redact_text(reason)}); {advice}"
        ) from None


def await_server(child: Child, url: str) -> None:
    """Wait until the server responds at `url`; raise `ServerFailed` with its own message if it does not."""
    deadline = time.monotonic() + _START_LIMIT_S
    directly = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy: the server is on this machine
    while child.running and time.monotonic() < deadline:
        try:
            with directly.open(url, timeout=5):
                return
        except urllib.error.HTTPError:  # the server asks for a password, so it is up
            return
        except OSError:
            time.sleep(0.1)
    from prefect.settings import get_current_settings

    cause = f"did not respond within {_START_LIMIT_S} s" if child.running else "did not start"
    output = "\n".join(child.output().splitlines()[-_LAST_LINES:])
    home = get_current_settings().home
    raise ServerFailed(
        f"Prefect's server {cause}; it uses PREFECT_HOME={home}, set PREFECT_HOME to use another\n{redact_text(output)}"
    )
