"""What a cluster lacks is asked for and waited for, until a limit that names what is missing."""

from collections.abc import Sequence

import pytest

from tasks.resources import growing, scaling
from tasks.resources.scaling import Needs, Resources, Scale


class Cluster:
    """A cluster whose nodes come after it was asked for them, one set of nodes for each look at it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *nodes: Sequence[Resources]) -> None:
        self.requests: list[list[Resources]] = []
        self.lines: list[str] = []
        self._nodes = list(nodes)
        monkeypatch.setattr(growing, "_POLL_S", 0.01)
        monkeypatch.setattr(growing, "placement_group", self._request)
        monkeypatch.setattr(scaling, "nodes", lambda: self._nodes.pop(0) if len(self._nodes) > 1 else self._nodes[0])

    def _request(self, bundles: list[Resources]) -> str:
        self.requests.append(bundles)
        return "request"

    def resolve(self, workers: int, needs: Needs, *, limit_s: float) -> Scale:
        return growing.resolve(workers, threads=None, needs=needs, limit_s=limit_s, on_wait=self.lines.append)


def test_nodes_are_asked_for_once_and_workers_start_as_soon_as_they_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    gpus: list[Resources] = [{"CPU": 8, "GPU": 1}] * 2
    cluster = Cluster(monkeypatch, [], [{"CPU": 2}], [{"CPU": 2}, *gpus])
    given = cluster.resolve(2, Needs(device="cuda"), limit_s=60)
    assert (given.workers, given.use_gpu, given.cpus) == (2, True, 4)
    assert cluster.requests == [[{"GPU": 1}, {"GPU": 1}, {"CPU": 1}]]
    (line,) = cluster.lines
    assert line.startswith("WARNING: waiting up to 1 min for the cluster to add nodes: device=cuda needs")


def test_more_workers_than_gpus_make_a_cluster_add_gpus_unless_they_take_none(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_nodes: list[Resources] = [{"CPU": 8, "GPU": 1}] * 2
    for device, each in (("auto", {"GPU": 1}), ("cpu", {"CPU": 1})):
        workers = 4 if device == "auto" else 20
        cluster = Cluster(monkeypatch, gpu_nodes, gpu_nodes, gpu_nodes * 2)
        needs = Needs(device=device)  # type: ignore[arg-type]
        assert cluster.resolve(workers, needs, limit_s=60).use_gpu is (device == "auto")
        assert cluster.requests == [[each] * workers + [{"CPU": 1}]]


def test_after_the_limit_the_error_says_what_was_asked_for_and_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [{"CPU": 3}, {"CPU": 2}])
    with pytest.raises(ValueError) as error:
        cluster.resolve(8, Needs(), limit_s=0.3)
    assert str(error.value) == (
        "--workers must be at most 4 on a cluster with 5 CPUs, got 8; one CPU of the cluster stays free; the cluster "
        "has 2 nodes, 5 CPUs, 0 GPUs and added no others within 0.005 min"
    )


def test_what_is_there_is_not_waited_for_and_a_local_ray_adds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [{"CPU": 5}])
    assert cluster.resolve(4, Needs(), limit_s=60).workers == 4
    with pytest.raises(ValueError, match="at most 4 on a cluster with 5 CPUs, got 5"):
        growing.resolve(5, threads=2, needs=Needs(), limit_s=60, on_wait=cluster.lines.append)
    assert not cluster.requests and not cluster.lines


def test_a_head_without_cpus_gets_a_node(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster(monkeypatch, [], [], [{"CPU": 1}])
    growing.await_a_cpu(limit_s=60, on_wait=cluster.lines.append)
    assert cluster.requests == [[{"CPU": 1}]] and len(cluster.lines) == 1
