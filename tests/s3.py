"""A real S3 server (SeaweedFS) for the length of a test session, on free ports of the loopback interface."""

import contextlib
import dataclasses
import json
import os
import secrets
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from botocore.session import get_session

from tasks.runners.child import Child
from tests.prefect_system import free_port
from tests.runs import await_that

CANARY = f"canary-{secrets.token_hex(16)}"
"""The secret key of every test on S3: wherever this is found afterwards, a secret got out."""


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
    folder.mkdir(parents=True, exist_ok=True)
    listeners = [f"{name}.port{kind}" for name in ("master", "volume", "filer", "s3") for kind in ("", ".grpc")]
    ports = {listener: free_port() for listener in listeners}
    server = Server(endpoint=f"http://127.0.0.1:{ports['s3.port']}")
    identity = {
        "name": "tests",
        "credentials": [{"accessKey": server.access_key, "secretKey": server.secret_key}],
        "actions": ["Admin", "Read", "Write", "List", "Tagging"],
    }
    config = folder / "identities.json"
    config.write_text(json.dumps({"identities": [identity]}))
    sockets = tempfile.mkdtemp(prefix="s3-", dir="/tmp")  # their paths must stay below 107 bytes
    options = {
        **ports,
        "dir": folder,
        "ip": "127.0.0.1",
        "filer.localSocket": f"{sockets}/filer",
        "s3.localSocket": f"{sockets}/s3",
        "s3.config": config,
        "s3.autoCreateBucket": "false",
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "master.telemetry": "false",
        "master.volumeSizeLimitMB": 64,
        "volume.max": 100,
        "volume.minFreeSpace": "64MiB",  # its default, a hundredth of the disk, refuses writes while gigabytes are free
    }
    command = [str(Path(sys.executable).with_name("weed")), "-logtostderr=true", "server", "-s3"]
    command += [f"-{name}={value}" for name, value in options.items()]
    # It would take keys of the environment for one more identity, in place of its own when the names are equal.
    env = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    child, client = Child(command, env=env, cwd=folder, remove=sockets, grace_s=0), server.client()
    try:
        await_that(lambda: _has_bucket(client, server.bucket) or not child.running, limit_s=60, interval_s=0.05)
        assert child.running, child.output()
        yield server
    finally:
        child.end()


def _has_bucket(client: Any, bucket: str) -> bool:
    """Whether the server is ready: it made the bucket."""
    with contextlib.suppress(BotoCoreError, ClientError):
        client.create_bucket(Bucket=bucket)
        return True
    return False
