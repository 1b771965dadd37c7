"""Runs on a cluster that has shrunk to its head: capacity is what it may add, and it shrinks again afterwards."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import manifest
from storage.uri import URI
from tasks.cluster.capacity import nodes_of
from tests.clusters import Growing, growing
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
    with growing(os.environ, tmp_path_factory.mktemp("growing"), node_types=_NODE_TYPES) as cluster:
        yield cluster


def _is_empty(cluster: Growing) -> bool:
    return [node.get("CPU", 0) for node in nodes_of(cluster.address)] == [0]


def _checked(cluster: Growing, folder: Path, *arguments: str) -> str:
    """What `--check` says about Ray."""
    root = ["--storage", str(folder / "root")]
    run = Run("--check", *_SAMPLE, *root, *arguments, folder=folder, env=cluster.env)
    run.process.wait()
    told = [line.split(maxsplit=2) for line in run.output.read_text().splitlines()]
    return next(f"{verdict} {about}" for verdict, what, about in told if what == "Ray")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "1 workers with 1 GPU and 1 CPUs each"),
        (["--set", "accelerator_type=T4"], "1 workers with 1 GPU and 1 CPUs each"),
        (["--set", "device=cpu", "--workers", "4"], "4 workers with 1 CPUs each"),
        (["--set", "device=cpu"], "1 workers with 1 CPUs each"),
    ],
    ids=["auto", "a kind of GPU", "a number", "auto on CPUs"],
)
def test_capacity_of_a_cluster_without_workers_is_what_it_may_add(
    cluster: Growing, tmp_path: Path, arguments: list[str], says: str
) -> None:
    may = "0 nodes, 0 CPUs, 0 GPUs and may add 3 nodes, 8 CPUs, 1 GPUs"
    assert _checked(cluster, tmp_path, *arguments) == f"ok {cluster.address}: {may}; {says}"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--workers", "2"], "--workers must be at most the number of GPUs that it has or may add, 1, got 2"),
        (
            ["--set", "accelerator_type=H100"],
            "accelerator_type must be one that a node has, got 'H100'; this Ray has T4",
        ),
    ],
)
def test_what_exceeds_the_declared_maxima_is_refused(
    cluster: Growing, tmp_path: Path, arguments: list[str], says: str
) -> None:
    assert _checked(cluster, tmp_path, *arguments).startswith(f"refused {says}")
    assert _is_empty(cluster)


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
