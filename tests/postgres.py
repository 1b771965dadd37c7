"""A Postgres of the tests' own, of Debian's package."""

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tasks.runners.child import Child
from tests.prefect_system import free_port
from tests.runs import await_that


@contextlib.contextmanager
def postgres(*, user: str, password: str, database: str) -> Iterator[str]:
    """A server on loopback with one database; its HOST:PORT. Skips the test if Postgres is not installed."""
    programs = _programs()
    folder, port = Path(tempfile.mkdtemp(prefix="postgres-")), free_port()  # its user may not enter pytest's folders
    secret = folder / "password"
    secret.write_text(password)
    as_user: list[str] = []
    if os.geteuid() == 0:  # Postgres refuses to run as root; the package creates this user
        as_user = ["runuser", "-u", "postgres", "--"]
        for path in (folder, secret):
            shutil.chown(path, "postgres")
    create = [
        str(programs / "initdb"),
        "-U",
        user,
        "--pwfile",
        str(secret),
        "-A",
        "scram-sha-256",
        str(folder / "data"),
    ]
    subprocess.run([*as_user, *create], check=True, capture_output=True, cwd="/")
    options = ["-h", "127.0.0.1", "-p", str(port), "-k", str(folder), "-F"]  # -F: no fsync
    server = Child([*as_user, str(programs / "postgres"), "-D", str(folder / "data"), *options], env=os.environ)
    try:
        ready = [str(programs / "pg_isready"), "-h", "127.0.0.1", "-p", str(port)]
        await_that(lambda: subprocess.run(ready, capture_output=True).returncode == 0, limit_s=60)
        words = [str(programs / "createdb"), "-h", "127.0.0.1", "-p", str(port), "-U", user, database]
        subprocess.run(words, env=os.environ | {"PGPASSWORD": password}, check=True, capture_output=True)
        yield f"127.0.0.1:{port}"
    finally:
        server.end()
        shutil.rmtree(folder)


def _programs() -> Path:
    """The folder of Postgres' programs, of the newest version that is installed."""
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda path: int(path.parts[-3]))
    if not found:
        reason = "Postgres is not installed: apt-get install --no-install-recommends postgresql"
        if os.environ.get("REQUIRE_POSTGRES"):
            pytest.fail(reason)
        pytest.skip(reason)
    return found[-1].parent
