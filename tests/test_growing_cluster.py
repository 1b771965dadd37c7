"""Runs on a cluster that has shrunk to its head: capacity is what it may add, and it shrinks again afterwards."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import manifest
from storage.uri import URI
from tests.clusters import Growing, growing, nodes
from tests.runs import CHECKOUT, Run, await_that

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

_NODE_TYPES = {
    "cpus": ({"CPU": 3.0}, 2),
    "gpus": ({"CPU": 2.0, "GPU": 1.0, "accelerator_type:T4": 1.0}, 1),
}
"""Two nodes with CPUs, one with a GPU that exists by name only."""
_REQUESTS: dict[str, tuple[int | None, dict[str, str], str]] = {
    "auto": (None, {}, "1 worker with 1 GPU and 1 CPU each"),
    "a kind of GPU": (None, {"accelerator_type": "T4"}, "1 worker with 1 GPU and 1 CPU each"),
    "auto on CPUs": (None, {"device": "cpu"}, "1 worker with 1 CPU each"),
    "a number on CPUs": (4, {"device": "cpu"}, "4 workers with 1 CPU each"),
    "too many": (
        *(2, {}),
        "--workers must be at most the number of GPUs that it has or may add, 1, got 2; or use --set device=cpu",
    ),
    "no such GPU": (
        *(None, {"accelerator_type": "H100"}),
        "accelerator_type must be one that a node has, got 'H100'; this cluster has T4: use one of these, or omit it",
    ),
}
"""Workers, their needs, and what the check says."""
_PROGRAM = """
import json, sys
from tasks.cluster import capacity
from tasks.resources.scaling import Needs

def check(workers, needs):
    try:
        return capacity.check_workers(workers, Needs(**needs))
    except ValueError as error:
        return str(error)

print(json.dumps([check(*one) for one in json.loads(sys.argv[1])]))
"""
_SAMPLE = ["--recipe", "mnist-sample-resnet18", "--set", "model=small-cnn", "--set", "epochs=1"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Growing]:
    with growing(os.environ, tmp_path_factory.mktemp("growing"), node_types=_NODE_TYPES) as cluster:
        yield cluster


def _is_empty(cluster: Growing) -> bool:
    return [node.get("CPU", 0) for node in nodes(cluster.address)] == [0]


@pytest.fixture(scope="module")
def said(cluster: Growing) -> dict[str, str]:
    """What the check of each request says about Ray."""
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, json.dumps([(number, needs) for number, needs, _ in _REQUESTS.values()])],
        env=os.environ | cluster.env | {"PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return dict(zip(_REQUESTS, json.loads(done.stdout.splitlines()[-1]), strict=True))


@pytest.mark.parametrize("request_", _REQUESTS)
def test_capacity_of_a_cluster_without_workers_is_what_it_may_add(
    cluster: Growing, said: dict[str, str], request_: str
) -> None:
    may = f"{cluster.address}: 0 nodes, 0 CPUs, 0 GPUs and may add 3 nodes, 8 CPUs, 1 GPU; "
    assert said[request_].removeprefix(may) == _REQUESTS[request_][2]
    assert _is_empty(cluster), "a check starts no node"


def test_a_whole_pipeline_runs_from_no_worker_node_and_leaves_none(cluster: Growing, tmp_path: Path) -> None:
    await_that(lambda: _is_empty(cluster), limit_s=180)
    root = ["--json", "--storage", str(tmp_path / "root")]
    run = Run(*_SAMPLE, *root, "--set", "device=cpu", folder=tmp_path, env=cluster.env)
    uris = run.result()["uris"]
    assert manifest.load(URI(uris["checkpoint"])).statistics["resolved"]["device"] == "cpu"
    assert manifest.load(URI(uris["predictions"])).rows > 0
    await_that(lambda: _is_empty(cluster), limit_s=180)


def test_a_worker_gets_the_gpu_that_the_cluster_adds_and_never_trains_on_the_cpu_instead(
    cluster: Growing, tmp_path: Path
) -> None:
    run = Run(*_SAMPLE, "--storage", str(tmp_path / "root"), folder=tmp_path, env=cluster.env)
    assert run.process.wait() == 1
    said = run.log.read_text()
    assert "UnusableGpu: torch cannot use a GPU on node " in said and "or use --set device=cpu" in said
    assert not list((tmp_path / "root" / "checkpoints").glob("*/_manifest.json"))
    await_that(lambda: _is_empty(cluster), limit_s=180)
