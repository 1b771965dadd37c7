"""Runs on an existing cluster: two nodes that share no disk, only S3."""

import os
import re
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from flows.cli import app
from storage import files, manifest, tables
from storage.kinds import CHECKPOINT
from storage.uri import URI, Root
from tests.clusters import TwoNodes
from tests.faults.harness import NUM_TEST, raw_name, write_raw
from tests.runs import Run, await_that
from tests.s3 import Server

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]

_SAMPLE = ["--recipe", "mnist-sample-resnet18", "--set", "model=small-cnn", "--set", "minimum=0"]
_RECIPE = [*_SAMPLE, "--workers", "2", "--set", "precision=fp32", "--set", "epochs=5"]


@pytest.fixture(scope="module")
def apart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that each node has for itself."""
    return tmp_path_factory.mktemp("apart")


@pytest.fixture(scope="module")
def cluster(s3: Server, apart: Path) -> Iterator[TwoNodes]:
    """Two nodes, each too small for two training workers."""
    with TwoNodes(os.environ, apart=apart) as cluster:
        yield cluster


def test_a_folder_that_the_nodes_do_not_share_is_refused_by_name_before_anything_begins(
    cluster: TwoNodes, apart: Path, tmp_path: Path
) -> None:
    root = apart / "root"
    run = Run(*_RECIPE, "--storage", str(root), folder=tmp_path, env=cluster.env)
    assert run.process.wait() == 2
    said = run.log.read_text().removeprefix(f"{app.STARTING}\n")
    assert re.match(f"error: RAY_ADDRESS={cluster.address}: node \\S+ \\S+ sees another folder at {root}; ", said)
    assert said.endswith("use s3://bucket/prefix or a shared file system\n") and len(said.splitlines()) == 1


def test_a_cluster_that_can_do_the_run_is_told_to_be_fine_in_a_line_each(
    cluster: TwoNodes, s3: Server, tmp_path: Path
) -> None:
    run = Run("--check", *_RECIPE, "--storage", f"s3://{s3.bucket}/checked", folder=tmp_path, env=cluster.env)
    assert run.wait() == 0
    lines = [line.split(maxsplit=2) for line in run.output.read_text().splitlines()]
    assert {verdict for verdict, _, _ in lines} == {"ok"}
    told = {what: about for _, what, about in lines}
    assert told["Ray"] == f"{cluster.address}: 2 nodes, 6 CPUs, 0 GPUs; 2 workers with 2 CPUs each"
    assert told["nodes"].startswith(f"2 nodes share s3://{s3.bucket}/checked; Python 3.")
    assert files.walk(URI(f"s3://{s3.bucket}/checked")) == []


def test_a_run_over_two_nodes_ends_with_the_same_bytes_when_one_of_them_dies_in_the_middle_of_training(
    cluster: TwoNodes, s3: Server, tmp_path: Path
) -> None:
    root = Root(f"s3://{s3.bucket}/two-nodes")
    write_raw(root)
    result = _run(cluster, root, tmp_path).result()
    undisturbed = {kind: _content(result["uris"][kind]) for kind in ("checkpoint", "predictions")}
    assert manifest.load(URI(result["uris"]["checkpoint"])).statistics_of(CHECKPOINT).resolved.workers == 2
    rows = tables.read_split(URI(result["uris"]["predictions"]), "test").to_pandas()
    assert sorted(rows["id"]) == list(range(NUM_TEST))

    for kind in ("checkpoint", "predictions"):
        files.remove(URI(result["uris"][kind]))
    struck = _run(cluster, root, tmp_path)
    await_that(lambda: _first_epoch_is_over(root) or struck.process.poll() is not None, interval_s=0.2)
    cluster.kill_a_node(lambda pid, command: os.kill(pid, signal.SIGKILL))
    assert not files.exists(URI(result["uris"]["checkpoint"]).child(manifest.NAME)), "the node died too late"
    cluster.add_a_node()
    again = struck.result()
    assert {kind: _content(again["uris"][kind]) for kind in undisturbed} == undisturbed
    assert again["metrics"] == result["metrics"]
    assert not struck.processes(), "a process of the run outlived it"


def _run(cluster: TwoNodes, root: Root, folder: Path, recipe: Sequence[str] = _RECIPE) -> Run:
    raw = root.child(f"datasets/raw/{raw_name()}")
    return Run(*recipe, "--json", "--data", raw, "--storage", root, folder=folder, env=cluster.env)


def _first_epoch_is_over(root: Root) -> bool:
    return any(entry.path.endswith("/epoch-0001/checkpoint.json") for entry in files.walk(root.child("runs")))


def _content(uri: str) -> list[Any]:
    """Path and digest of what was committed, without the files that tell of times."""
    listed = manifest.load(URI(uri)).files
    return [(file.path, file.sha256) for file in listed if file.path.startswith(("weights", "test/"))]
