"""`prefect deployment run mnist/train` against a real server and a real worker."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import registry
from storage.uri import Root
from tasks.child import Child
from tests.runs import CHECKOUT, await_that

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
_PREFECT = [sys.executable, "-m", "prefect"]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[dict[str, str]]:
    """The variables under which `prefect` talks to a server of the test's own, with a worker on the pool `pipeline`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    url = f"http://127.0.0.1:{port}/api"
    variables = {
        "PREFECT_HOME": str(tmp_path / "home"),
        "PREFECT_API_URL": url,
        "PREFECT_SERVER_ANALYTICS_ENABLED": "0",
    }
    env = os.environ | variables | {"COLUMNS": "200"}
    server = Child([*_PREFECT, "server", "start", "--host", "127.0.0.1", "--port", str(port)], env=env)
    worker = None
    try:
        await_that(lambda: _prefect(env, "work-pool", "ls", check=False).returncode == 0, limit_s=120)
        _prefect(env, "work-pool", "create", "--type", "process", "pipeline")
        _prefect(env, "--no-prompt", "deploy", "--all")
        worker = Child([*_PREFECT, "worker", "start", "--pool", "pipeline"], env=env)
        yield env
    finally:
        if worker:
            worker.end()
        server.end()


def test_a_deployment_run_does_the_whole_pipeline(environment: dict[str, str], tmp_path: Path) -> None:
    root = Root(str(tmp_path / "root"))
    parameters = {"recipe": "mnist-sample-resnet18", "storage": root, "settings": {"epochs": 1, "accuracy_floor": 0}}
    words = [word for name, value in parameters.items() for word in ("-p", f"{name}={json.dumps(value)}")]
    answer = _prefect(environment, "deployment", "run", "mnist/train", *words, "--watch")
    assert "Completed" in answer.stdout
    assert registry.champion(root, "mnist-sample") is not None
    artifacts = _prefect(environment, "artifact", "ls", "--limit", "20").stdout
    assert "summary" in artifacts


def _prefect(env: dict[str, str], *words: str, check: bool = True) -> "subprocess.CompletedProcess[str]":
    answer = subprocess.run([*_PREFECT, *words], env=env, cwd=CHECKOUT, capture_output=True, text=True, timeout=900)
    assert not check or answer.returncode == 0, answer.stdout + answer.stderr
    return answer
