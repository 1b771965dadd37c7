"""What a cluster and this machine have for a run, as it is said before the run starts."""

import re

import pytest

from tasks.resources import capacity, devices, machine
from tasks.resources.scaling import Needs, Workers


@pytest.mark.parametrize(
    ("workers", "needs", "message"),
    [
        (None, Needs(), "1 worker with 3 CPUs each"),
        (4, Needs(), "WARNING: each stage waits .*: --workers must be at most 3 on a cluster with 4 CPUs, got 4"),
        (None, Needs(device="cuda"), "WARNING: .*: device=cuda needs a GPU, but this cluster has none"),
    ],
)
def test_what_a_cluster_has_is_said_and_what_it_has_not_now_is_a_warning_since_it_may_add_nodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], workers: Workers, needs: Needs, message: str
) -> None:
    monkeypatch.setattr(capacity, "nodes_of", lambda address: [{"CPU": 4.0}])
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    resources = capacity.check_workers(workers, needs)
    assert resources.startswith("http://head:8265: 1 node, 4 CPUs, 0 GPUs; ")
    assert re.search(message, resources + capsys.readouterr().err)


def use_machine(monkeypatch: pytest.MonkeyPatch, *, gpus: list[str]) -> None:
    """Let this machine have 16 cores and these GPUs."""
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(machine, "gpus", lambda *_: gpus)
    monkeypatch.setattr(machine, "cores", lambda *_: 16)


def test_gpus_of_this_machine_are_counted_without_torch_which_takes_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    use_machine(monkeypatch, gpus=["0", "1"])
    monkeypatch.setattr(devices, "trouble_in_child", lambda: pytest.fail("torch was imported"))
    assert capacity.check_workers(2) == "local, 16 cores; 2 workers with 1 GPU each"


@pytest.mark.parametrize(
    ("gpus", "workers", "needs", "message"),
    [
        (
            ["0", "1"],
            8,
            Needs(),
            "GPUs of this machine, 2, got 8; for more, set RAY_ADDRESS .*, or use --set device=cpu",
        ),
        (["0"], None, Needs(accelerator_type="H100"), "^accelerator_type must be empty without a cluster, got 'H100'"),
        (
            ["0"],
            0,
            Needs(accelerator_type="H100"),
            "^accelerator_type must be empty with --workers 0, got 'H100'; omit",
        ),
        ([], 0, Needs(device="cuda"), "device=cuda needs a GPU, .* machine: no driver; or use --set device=cpu"),
        ([], None, Needs(device="cuda"), ": no driver; or set RAY_ADDRESS to a cluster with GPUs, or use --set device"),
    ],
)
def test_what_this_machine_does_not_have_is_refused_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, gpus: list[str], workers: Workers, needs: Needs, message: str
) -> None:
    use_machine(monkeypatch, gpus=gpus)
    monkeypatch.setattr(devices, "trouble_in_child", lambda: "no driver")
    with pytest.raises(ValueError, match=message):
        capacity.check_workers(workers, needs)
