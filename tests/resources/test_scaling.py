"""How many workers a job gets on clusters of several shapes."""

import os

import pytest

from tasks.resources.scaling import Needs, Resources, Workers, bundles, resolve, threads_here

_LAPTOP: list[Resources] = [{"CPU": 5}]


def test_a_local_run_is_one_worker_with_all_the_threads() -> None:
    given = resolve(None, threads=2, nodes=_LAPTOP)
    assert (given.workers, given.cpus, given.threads, given.use_gpu) == (1, 1, 2, False)


@pytest.mark.parametrize(
    ("cpus", "workers", "expected"),
    [((2,), None, (1, 1)), ((8,), None, (1, 7)), ((8,), 3, (3, 2)), ((8, 8), None, (2, 7)), ((4, 8), 4, (4, 1))],
)
def test_on_a_cluster_there_is_a_worker_per_node_and_a_cpu_of_each_stays_free(
    cpus: tuple[int, ...], workers: int | None, expected: tuple[int, int]
) -> None:
    given = resolve(workers, threads=None, nodes=[{"CPU": number} for number in cpus])
    assert (given.workers, given.cpus) == expected


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [([{"CPU": 32, "GPU": 8}, {"CPU": 32}], (8, 3)), ([{"CPU": 8, "GPU": 4}, {"CPU": 16, "GPU": 2}], (6, 1))],
)
def test_workers_with_gpus_fit_on_the_nodes_that_have_them(nodes: list[Resources], expected: tuple[int, int]) -> None:
    given = resolve(None, threads=None, nodes=nodes)
    assert (given.workers, given.cpus) == expected


def test_automatic_workers_are_no_more_than_the_batch_feeds() -> None:
    nodes: list[Resources] = [{"CPU": 96, "GPU": 8}]
    for rows, workers in {32: 1, 128: 2, 512: 8}.items():
        assert resolve(None, threads=None, nodes=nodes, needs=Needs(batch_size=rows)).workers == workers
    assert resolve(8, threads=None, nodes=nodes, needs=Needs(batch_size=128)).workers == 8, "as asked for"
    assert resolve(None, threads=None, nodes=[{"CPU": 8}], needs=Needs(batch_size=32)).workers == 1


@pytest.mark.parametrize(
    ("workers", "nodes", "named"),
    [
        (None, [{"CPU": 1}], "a cluster with 1 CPU, got 1"),
        (5, _LAPTOP, "at most 4 on a cluster with 5 CPUs, got 5"),
        (3, [{"CPU": 16, "GPU": 2}], "number of GPUs, 2, got 3"),
        (None, [], "a cluster with 0 CPUs"),
    ],
)
def test_what_the_cluster_can_never_give_is_refused_with_what_it_has(
    workers: int | None, nodes: list[Resources], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        resolve(workers, threads=None, nodes=nodes)


def test_threads_never_exceed_the_cores_even_where_a_node_counts_more_cpus_than_it_has() -> None:
    cores = len(os.sched_getaffinity(0))
    assert threads_here(4 * cores, sharing=1) == cores
    assert threads_here(4 * cores, sharing=cores) == 1
    assert threads_here(1, sharing=1) == 1


def test_workers_take_as_many_cpus_as_they_are_told_to() -> None:
    nodes: list[Resources] = [{"CPU": 8}]
    half = resolve(12, threads=None, nodes=nodes, needs=Needs(cpus=0.5))
    assert (half.workers, half.cpus, half.threads) == (12, 0.5, 1)
    three = resolve(2, threads=None, nodes=nodes, needs=Needs(cpus=3))
    assert (three.cpus, three.threads) == (3, 3)
    with pytest.raises(ValueError, match=r"--workers with 3 CPUs each \(cpus_per_worker\) must be at most 2 .* got 3"):
        resolve(3, threads=None, nodes=nodes, needs=Needs(cpus=3))
    with pytest.raises(ValueError, match=r"--workers with 5 CPUs each \(cpus_per_worker\) must be at most 0 .* got 1"):
        resolve(1, threads=None, nodes=[{"CPU": 4}, {"CPU": 4}], needs=Needs(cpus=5))


def test_workers_with_a_kind_of_gpu_count_the_nodes_that_have_it() -> None:
    nodes: list[Resources] = [
        {"CPU": 16, "GPU": 4, "accelerator_type:T4": 1},
        {"CPU": 16, "GPU": 2, "accelerator_type:A100": 1},
    ]
    assert resolve(None, threads=None, nodes=nodes, needs=Needs(accelerator_type="A100")).workers == 2
    assert resolve(None, threads=None, nodes=nodes).workers == 6
    with pytest.raises(ValueError, match="one that a node has, got 'H100'; the cluster has A100, T4: use one"):
        resolve(None, threads=None, nodes=nodes, needs=Needs(accelerator_type="H100"))


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([{"CPU": 8, "GPU": 8}], (8, 0.87)),
        ([{"CPU": 4, "GPU": 8}], (8, 0.37)),
        ([{"CPU": 1, "GPU": 8}], (8, 0)),
        ([{"CPU": 4}, {"CPU": 0, "GPU": 2}], (2, 0)),
    ],
    ids=["as many", "more GPUs than CPUs", "one CPU", "a node without CPUs"],
)
def test_workers_with_gpus_share_the_cpus_but_one_however_few_there_are(
    nodes: list[Resources], expected: tuple[int, float]
) -> None:
    given = resolve(None, threads=None, nodes=nodes)
    assert (given.workers, given.cpus, given.use_gpu, given.threads) == (*expected, True, 1)
    assert given.cpus * given.workers <= max(node["CPU"] for node in nodes) - 1


def test_workers_that_ask_for_no_gpu_take_none_where_there_are_some() -> None:
    nodes: list[Resources] = [{"CPU": 16, "GPU": 4}, {"CPU": 8}]
    given = resolve(None, threads=None, nodes=nodes, needs=Needs(device="cpu"))
    assert (given.workers, given.use_gpu, given.cpus) == (2, False, 7)
    assert resolve(10, threads=None, nodes=nodes, needs=Needs(device="cpu")).workers == 10


def test_workers_that_ask_for_a_gpu_never_take_cpus_instead() -> None:
    with pytest.raises(ValueError, match="device=cuda needs a GPU, .* has none; add one, or use --set device=cpu"):
        resolve(None, threads=None, nodes=[{"CPU": 16}], needs=Needs(device="cuda"))
    assert resolve(None, threads=None, nodes=[{"CPU": 16, "GPU": 1}], needs=Needs(device="cuda")).use_gpu
    assert not resolve(None, threads=None, nodes=[{"CPU": 16}], needs=Needs()).use_gpu, "what there is now"


@pytest.mark.parametrize(
    ("workers", "needs", "expected"),
    [
        (None, Needs(), [{"CPU": 1}]),
        (2, Needs(cpus=3), [{"CPU": 3}] * 2),
        (2, Needs(device="cuda"), [{"GPU": 1}] * 2),
        (1, Needs(accelerator_type="A100", cpus=2), [{"GPU": 1, "accelerator_type:A100": 0.001, "CPU": 2}]),
    ],
)
def test_a_growing_cluster_is_told_what_workers_need_at_least_and_a_cpu_for_data(
    workers: Workers, needs: Needs, expected: list[Resources]
) -> None:
    assert bundles(workers, needs, nodes=_LAPTOP) == [*expected, {"CPU": 1}]
