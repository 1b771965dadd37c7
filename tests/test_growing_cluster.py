"""Runs on a cluster that has shrunk to its head: it adds what they ask for, and shrinks again afterwards."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import manifest
from storage.uri import URI
from tests.clusters import Growing, nodes
from tests.runs import Run, await_that

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

_NODE_TYPES = {
    "cpus": ({"CPU": 3.0}, 2),
    "gpus": ({"CPU": 2.0, "GPU": 1.0, "accelerator_type:T4": 1.0}, 1),
}
"""Two nodes with CPUs, one with a GPU that exists by name only."""
_SAMPLE = ["--recipe", "mnist-sample-resnet18", "--set", "model=small-cnn", "--set", "epochs=1"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Growing]:
    with Growing(os.environ, tmp_path_factory.mktemp("growing"), node_types=_NODE_TYPES) as cluster:
        yield cluster


def _is_empty(cluster: Growing) -> bool:
    return [node.get("CPU", 0) for node in nodes(cluster.address)] == [0]


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
    root = ["--storage", str(tmp_path / "root")]
    run = Run(*_SAMPLE, *root, "--set", "device=cuda", folder=tmp_path, env=cluster.env)
    assert run.process.wait() == 1
    said = run.log.read_text()
    assert "UnusableGpu: torch cannot use a GPU on node " in said and "or use --set device=cpu" in said
    assert not list((tmp_path / "root" / "checkpoints").glob("*/_manifest.json"))
    await_that(lambda: _is_empty(cluster), limit_s=180)


def test_what_the_cluster_never_adds_is_named_after_the_limit(cluster: Growing, tmp_path: Path) -> None:
    root = ["--storage", str(tmp_path / "root"), "--stall-timeout", "18s"]
    run = Run(*_SAMPLE, *root, "--workers", "40", "--set", "device=cpu", folder=tmp_path, env=cluster.env)
    assert run.process.wait() == 1
    said = run.log.read_text()
    assert "WARNING: each stage waits for the cluster to add nodes" in said, "before anything is downloaded"
    assert "got 40; one CPU of the cluster stays free; the cluster has " in said and "within 0.3 min" in said
