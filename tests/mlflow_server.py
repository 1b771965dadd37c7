"""A real MLflow server with SQLite, in an environment of its own: its pyarrow is older than this project's."""

import contextlib
import os
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

import httpx

from tasks.runners.child import Child
from tests.runs import await_that


@contextlib.contextmanager
def serving(folder: Path, port: int) -> Iterator[str]:
    """The address of a server that keeps all in `folder`; `uv` downloads it the first time."""
    folder.mkdir(exist_ok=True)
    server = ["uv", "tool", "run", "--from", f"mlflow=={metadata.version('mlflow-skinny')}", "mlflow", "server"]
    options = ["--backend-store-uri", f"sqlite:///{folder}/mlflow.db", "--artifacts-destination", str(folder / "files")]
    child = Child(
        [sys.executable, "-m", *server, *options, "--port", str(port), "--workers", "1"], env=os.environ, cwd=folder
    )
    address = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(f"{address}/health", trust_env=False).status_code == 200
        return False

    try:
        await_that(lambda: answers() or not child.running, limit_s=600)
        assert child.running, child.output()
        yield address
    finally:
        child.end()
