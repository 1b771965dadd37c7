"""How many workers a job gets on clusters of several shapes."""

import os
from pathlib import Path

import pytest

from tasks.resources import scaling
from tasks.resources.needs import Needs, Workers
from tasks.resources.scaling import Resources, resolve, threads_here

_LAPTOP: list[Resources] = [{"CPU": 5}]
_KINDS: list[Resources] = [
    {"CPU": 16, "GPU": 4, "accelerator_type:T4": 1},
    {"CPU": 16, "GPU": 2, "accelerator_type:A100": 1},
]


@pytest.mark.parametrize(
    ("workers", "needs", "nodes", "expected"),
    [
        # A worker per node, of whose CPUs one stays free; more workers share them.
        (None, Needs(), [{"CPU": 2}], (1, 1, False)),
        (None, Needs(), [{"CPU": 8}], (1, 7, False)),
        (3, Needs(), [{"CPU": 8}], (3, 2, False)),
        (None, Needs(), [{"CPU": 8}] * 2, (2, 7, False)),
        (4, Needs(), [{"CPU": 4}, {"CPU": 8}], (4, 1, False)),
        (12, Needs(cpus=0.5), [{"CPU": 8}], (12, 0.5, False)),
        (2, Needs(cpus=3), [{"CPU": 8}], (2, 3, False)),
        # A worker per GPU, but no more than the batch feeds, unless they are asked for.
        (None, Needs(), [{"CPU": 32, "GPU": 8}, {"CPU": 32}], (8, 3, True)),
        (None, Needs(), [{"CPU": 8, "GPU": 4}, {"CPU": 16, "GPU": 2}], (6, 1, True)),
        (None, Needs(batch_size=32), [{"CPU": 96, "GPU": 8}], (1, 4, True)),
        (None, Needs(batch_size=128), [{"CPU": 96, "GPU": 8}], (2, 4, True)),
        (8, Needs(batch_size=128), [{"CPU": 96, "GPU": 8}], (8, 4, True)),
        (None, Needs(batch_size=32), [{"CPU": 8}], (1, 7, False)),
        (None, Needs(device="cuda"), [{"CPU": 16, "GPU": 1}], (1, 4, True)),
        # Workers with GPUs share the CPUs but one, however few there are.
        (None, Needs(), [{"CPU": 8, "GPU": 8}], (8, 0.87, True)),
        (None, Needs(), [{"CPU": 1, "GPU": 8}], (8, 0, True)),
        (None, Needs(), [{"CPU": 4}, {"CPU": 0, "GPU": 2}], (2, 0, True)),
        # Those that want no GPU take none; a kind of GPU counts the nodes that have it.
        (None, Needs(device="cpu"), [{"CPU": 16, "GPU": 4}, {"CPU": 8}], (2, 7, False)),
        (None, Needs(accelerator_type="A100"), _KINDS, (2, 4, True)),
        (None, Needs(), _KINDS, (6, 3, True)),
    ],
)
def test_number_and_size_of_workers_on_clusters_of_several_shapes(
    workers: Workers, needs: Needs, nodes: list[Resources], expected: tuple[int, float, bool]
) -> None:
    scale = resolve(workers, threads=None, nodes=nodes, needs=needs)
    assert (scale.workers, scale.cpus, scale.use_gpu) == expected
    assert scale.threads == max(1, int(scale.cpus))


def test_a_local_run_is_one_worker_with_all_the_threads() -> None:
    scale = resolve(None, threads=2, nodes=_LAPTOP)
    assert (scale.workers, scale.cpus, scale.threads, scale.use_gpu) == (1, 1, 2, False)


@pytest.mark.parametrize(
    ("workers", "needs", "nodes", "message"),
    [
        (None, Needs(), [{"CPU": 1}], "a cluster with 1 CPU, got 1"),
        (5, Needs(), _LAPTOP, "at most 4 on a cluster with 5 CPUs, got 5"),
        (3, Needs(), [{"CPU": 16, "GPU": 2}], "number of GPUs, 2, got 3"),
        (None, Needs(), [], "a cluster with 0 CPUs"),
        (3, Needs(cpus=3), [{"CPU": 8}], r"--workers with 3 CPUs each \(cpus_per_worker\) must be at most 2 .* got 3"),
        (1, Needs(cpus=5), [{"CPU": 4}] * 2, r"with 5 CPUs each \(cpus_per_worker\) must be at most 0 .*got 1"),
        (None, Needs(accelerator_type="H100"), _KINDS, "a node has, got 'H100'; the cluster has A100, T4: use"),
        (None, Needs(device="cuda"), [{"CPU": 16}], "device=cuda needs a GPU, .* has none; add one, or use --set"),
    ],
)
def test_what_the_cluster_does_not_have_is_refused_with_what_it_has(
    workers: Workers, needs: Needs, nodes: list[Resources], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        resolve(workers, threads=None, nodes=nodes, needs=needs)


def test_threads_never_exceed_the_cores_even_where_a_node_counts_more_cpus_than_it_has() -> None:
    cores = len(os.sched_getaffinity(0))
    assert [threads_here(4 * cores, sharing=sharing) for sharing in (1, cores)] == [cores, 1]
    assert threads_here(1, sharing=1) == 1


def test_cpu_limit_of_a_container_counts_as_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(4))
    (tmp_path / "cpu").mkdir()
    (tmp_path / "cpu/cpu.cfs_period_us").write_text("100000\n")
    for name, content, cores in (
        ("cpu.max", "max 100000", 4),
        ("cpu/cpu.cfs_quota_us", "-1", 4),
        ("cpu/cpu.cfs_quota_us", "150000", 2),
        ("cpu.max", "50000 100000", 1),
    ):
        (tmp_path / name).write_text(f"{content}\n")
        assert scaling.cores_here(tmp_path) == cores


def test_memory_of_a_container_counts_where_the_machine_has_more(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal:       32000 kB\nMemAvailable:   16000 kB\n")
    assert scaling.memory_here(tmp_path, meminfo) == 16_384_000
    for content, expected in (("max", 16_384_000), ("8192000", 8_192_000), ("99999999", 16_384_000)):
        (tmp_path / "memory.max").write_text(f"{content}\n")
        assert scaling.memory_here(tmp_path, meminfo) == expected
    assert scaling.memory_here() > 0
