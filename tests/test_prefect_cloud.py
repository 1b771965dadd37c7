"""A workspace of Prefect Cloud, as far as a stand-in behaves like it: https, a key, its path, nothing of `make up`."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tasks.runners.child import Child
from tests.prefect_cloud import Cloud, in_front_of
from tests.prefect_system import PrefectSystem
from tests.runs import CHECKOUT, LIMIT_S, await_that

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]
_SETTINGS = '{"epochs": 1, "model": "small-cnn", "minimum": 0}'


class Workspace:
    """What a user of a workspace calls, with the address and the key of it in the environment."""

    def __init__(self, cloud: Cloud, server: PrefectSystem) -> None:
        self.cloud, self.server = cloud, server
        own = {"PREFECT_HOME": f"{server.env['PREFECT_HOME']}-of-user"}
        self.env = os.environ | {"PIPELINE_STORAGE": server.env["PIPELINE_STORAGE"], "COLUMNS": "200"} | own | cloud.env

    def call(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", *words],
            env=self.env | variables,
            cwd=CHECKOUT,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory, integration: None) -> Iterator[Workspace]:
    folder = tmp_path_factory.mktemp("cloud")
    server = PrefectSystem(folder)
    try:
        with in_front_of(server, folder) as cloud:
            yield Workspace(cloud, server)
    finally:
        server.end()


def test_deployments_worker_run_events_and_status_work_with_a_key(workspace: Workspace) -> None:
    deployed = workspace.call("flows", "deploy")
    assert deployed.returncode == 0 and "mnist/smoke" in deployed.stdout, deployed.stderr
    worker = Child([sys.executable, "-m", "prefect", "worker", "start", "--pool", "pipeline"], env=workspace.env)
    try:
        options = ["--param", "workers=0", "--param", f"settings={_SETTINGS}", "--watch"]
        watched = workspace.call("prefect", "deployment", "run", "mnist/smoke", *options)
        assert watched.returncode == 0, watched.stdout + watched.stderr + worker.output()
        status = workspace.call("flows", "status")
        assert (status.returncode, status.stdout) == (0, "all is well\n"), status.stdout + status.stderr
    finally:
        worker.end()
    server = workspace.server
    (run,) = server.api("POST", "/flow_runs/filter", {"flow_runs": {"state": {"name": {"any_": ["Promoted"]}}}})
    assert any("report done" in line for line in server.log(run["id"])) and server.artifacts(run["id"])
    assert await_that(lambda: server.events("pipeline.model.promoted"), limit_s=60)
    assert workspace.cloud.refused == []


def test_a_run_of_the_command_line_is_checked_with_the_key_first(workspace: Workspace) -> None:
    checked = workspace.call("flows", "run", "--check", "--recipe", "mnist-sample-resnet18")
    assert checked.returncode == 0 and re.search(r"ok +Prefect +https://\S+/workspaces/\S+ responds", checked.stdout)


@pytest.mark.parametrize("words", [("deploy",), ("run", "--recipe", "mnist-sample-resnet18")])
def test_a_wrong_key_is_refused_with_the_next_step(workspace: Workspace, words: tuple[str, ...]) -> None:
    refused = workspace.call("flows", *words, PREFECT_API_KEY="pnu_other")
    *_, message = refused.stderr.splitlines()
    assert refused.returncode == 2 and message.startswith("error: PREFECT_API_URL="), refused.stderr
    assert "401" in message and "PREFECT_API_KEY" in message and "pnu_other" not in refused.stderr
