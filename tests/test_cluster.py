"""A run on a Ray that is not its own: the cluster that RAY_ADDRESS names."""

import os
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import manifest
from storage.uri import URI
from tasks.cluster import await_ray, start_ray
from tests.runs import Run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1200)]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a running head node, which counts more CPUs than this machine has cores."""
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    monkeypatch.setenv("RAY_AUTH_TOKEN", secrets.token_hex(32))
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    head, address, _ = start_ray(os.environ)
    try:
        await_ray(head, address)
        yield address
        assert head.running
    finally:
        head.end()


def test_a_run_on_a_cluster_sends_its_code_along_and_leaves_the_cluster_as_it_was(cluster: str, tmp_path: Path) -> None:
    run = Run(
        *("--source", "sample", "--set", "epochs=1", "--json", "--storage", str(tmp_path / "root")),
        folder=tmp_path,
        env={"RAY_ADDRESS": cluster},
    )
    result = run.result()
    resolved = manifest.load(URI(result["uris"]["checkpoint"])).statistics["resolved"]
    assert resolved["threads"] <= len(os.sched_getaffinity(0))
    assert result["metrics"]["num_rows"] == 1000
    assert not run.processes(), "a process of the run outlived it"
