"""Runs on a cluster that has shrunk to its head: it adds what they ask for, and shrinks again afterwards."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import manifest
from storage.kinds import CHECKPOINT
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


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage root for all tests, so that the later ones reuse what is prepared."""
    return tmp_path_factory.mktemp("growing-root") / "root"


def _is_empty(cluster: Growing) -> bool:
    return [node.get("CPU", 0) for node in nodes(cluster.address)] == [0]


def test_a_whole_pipeline_runs_from_no_worker_node_and_leaves_none(
    cluster: Growing, root: Path, tmp_path: Path
) -> None:
    await_that(lambda: _is_empty(cluster), limit_s=180)
    storage = ["--json", "--storage", str(root)]
    run = Run(*_SAMPLE, *storage, "--set", "device=cpu", folder=tmp_path, env=cluster.env)
    uris = run.result()["uris"]
    assert manifest.load(URI(uris["checkpoint"])).statistics_of(CHECKPOINT).resolved.device == "cpu"
    assert manifest.load(URI(uris["predictions"])).rows > 0
    await_that(lambda: _is_empty(cluster), limit_s=180)


def test_a_worker_gets_the_gpu_that_the_cluster_adds_and_never_trains_on_the_cpu_instead(
    cluster: Growing, root: Path, tmp_path: Path
) -> None:
    before, options = list(root.glob("checkpoints/*")), ["--set", "batch_size=128", "--set", "device=cuda"]
    run = Run(*_SAMPLE, "--storage", str(root), *options, folder=tmp_path, env=cluster.env)
    assert run.process.wait() == 1
    said = run.log.read_text()
    assert "UnusableGpu: torch cannot use a GPU on node " in said and "or use --set device=cpu" in said
    assert list(root.glob("checkpoints/*")) == before


def test_what_the_cluster_never_adds_is_named_after_the_limit(cluster: Growing, root: Path, tmp_path: Path) -> None:
    options = ["--set", "batch_size=128", "--set", "device=cpu", "--workers", "40", "--stall-timeout", "18s"]
    run = Run(*_SAMPLE, "--storage", str(root), *options, folder=tmp_path, env=cluster.env)
    assert run.process.wait() == 1
    said = run.log.read_text()
    assert "WARNING: each stage waits for the cluster to add nodes" in said, "before anything is downloaded"
    assert "got 40; one CPU of the cluster stays free; the cluster has " in said and "within 0.3 min" in said
