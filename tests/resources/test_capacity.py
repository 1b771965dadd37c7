"""What a cluster and this machine have for a run, as it is said before the run starts."""

import re
from pathlib import Path

import pytest

from tasks.resources import capacity, devices, machine
from tasks.resources.scaling import Needs, Workers


@pytest.mark.parametrize(
    ("workers", "needs", "says"),
    [
        (None, Needs(), "1 worker with 3 CPUs each"),
        (4, Needs(), "WARNING: each stage waits .*: --workers must be at most 3 on a cluster with 4 CPUs, got 4"),
        (None, Needs(device="cuda"), "WARNING: .*: device=cuda needs a GPU, but this cluster has none"),
    ],
)
def test_what_a_cluster_has_is_told_and_what_it_has_not_now_is_a_warning_since_it_may_add_nodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], workers: Workers, needs: Needs, says: str
) -> None:
    monkeypatch.setattr(capacity, "nodes_of", lambda address: [{"CPU": 4.0}])
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    resources = capacity.check_workers(workers, needs)
    assert resources.startswith("http://head:8265: 1 node, 4 CPUs, 0 GPUs; ")
    assert re.search(says, resources + capsys.readouterr().err)


class TestThisMachine:
    @pytest.fixture(autouse=True)
    def two_gpus(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """A machine of 16 cores with two GPUs, as its driver shows them."""
        for number in range(2):
            (tmp_path / str(number)).touch()
        for name in ("RAY_ADDRESS", "CUDA_VISIBLE_DEVICES"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setattr(machine, "_DEVICES", (str(tmp_path), "*"))
        monkeypatch.setattr(machine, "cores", lambda *_: 16)
        monkeypatch.setattr(devices, "trouble_in_child", lambda: pytest.fail("torch was asked, which takes seconds"))

    def test_more_workers_than_gpus_are_refused_with_their_number_and_the_way_out(self) -> None:
        told = (
            "number of GPUs of this machine, 2, got 8; for more, set RAY_ADDRESS to a cluster, or use --set device=cpu"
        )
        with pytest.raises(ValueError, match=told):
            capacity.check_workers(8)
        assert capacity.check_workers(2) == "local, 16 cores; 2 workers with 1 GPU each"

    @pytest.mark.parametrize(
        ("workers", "told"),
        [
            (None, "empty without a cluster, got 'H100'; omit it, or set RAY_ADDRESS to one"),
            (0, "empty with --workers 0, got 'H100'; omit it"),
        ],
    )
    def test_a_kind_of_gpu_is_refused_at_once_without_nodes_to_choose_from(
        self, workers: int | None, told: str
    ) -> None:
        with pytest.raises(ValueError, match=f"^accelerator_type must be {told}$"):
            capacity.check_workers(workers, Needs(accelerator_type="H100"))

    def test_a_machine_without_gpus_refuses_what_needs_one_also_without_ray(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(machine, "_DEVICES", ("/nowhere", "*"))
        monkeypatch.setattr(devices, "trouble_in_child", lambda: "no driver")
        for workers, way in (
            (0, "or use --set"),
            (None, "or set RAY_ADDRESS to a cluster with GPUs, or use --set"),
        ):
            with pytest.raises(ValueError, match=f"device=cuda needs a GPU, .* machine: no driver; {way} device=cpu"):
                capacity.check_workers(workers, Needs(device="cuda"))
