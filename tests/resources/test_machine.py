"""What this machine and a cluster have for a run, and what of it the run uses: cores, GPUs, workers."""

import os
import re
from pathlib import Path

import pytest
import torch

from storage import error_policy
from tasks.resources import capacity, devices, machine
from tasks.resources.needs import Needs


def test_cores_that_there_are_not_are_refused_by_name(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    request.addfinalizer(lambda: machine.choose(None))
    most = len(os.sched_getaffinity(0))
    for wrong in (0, -1, most + 1):
        machine.choose(wrong)
        with pytest.raises(ValueError, match=f"--cores must be 1 to {most} on this machine, got {wrong}"):
            capacity.check_workers()
    machine.choose(1)
    assert capacity.check_workers().startswith("local, 1 core")
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    with pytest.raises(ValueError, match=r"cannot be used with RAY_ADDRESS; .* cpus_per_worker"):
        capacity.check_workers()
    assert capacity.check_workers(Needs(workers=0)), "without the cluster"


@pytest.mark.parametrize(
    ("visible", "names"),
    [("0,1", ["0", "1"]), ("GPU-4f2a, GPU-77", ["GPU-4f2a", "GPU-77"]), ("", []), ("-1", []), (None, ["0", "1"])],
)
def test_a_run_uses_the_gpus_that_are_visible_to_it(visible: str | None, names: list[str], tmp_path: Path) -> None:
    for bus in ("0000:04:00.0", "0000:05:00.0"):
        (tmp_path / bus).mkdir()
    env = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    assert machine.gpus(env, devices=(str(tmp_path), "*")) == names


@pytest.mark.parametrize("hint", ["driver", "wsl"])
@pytest.mark.parametrize("library", ["libcuda.so.1", None])
def test_gpus_without_a_device_file_count_only_where_the_library_of_cuda_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hint: str, library: str | None
) -> None:
    (tmp_path / hint / "0").mkdir(parents=True)
    monkeypatch.setattr("ctypes.util.find_library", {"cuda": library}.get)
    hints = [(str(tmp_path / name), "*") for name in ("driver", "wsl")]
    assert machine.gpus({}, devices=(str(tmp_path / "opened"), "*"), hints=hints) == (["0"] if library else [])


@pytest.mark.parametrize(
    ("needs", "message"),
    [
        (Needs(), "1 worker with 3 CPUs each"),
        (Needs(workers=4), "WARNING: each stage waits .*: --workers must be at most 3 on a cluster with 4 CPUs, got 4"),
        (Needs(device="cuda"), "WARNING: .*: device=cuda needs a GPU, but this cluster has none"),
    ],
)
def test_resources_of_a_cluster_are_printed_and_missing_ones_are_a_warning_since_it_may_add_nodes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], needs: Needs, message: str
) -> None:
    monkeypatch.setattr(capacity, "nodes_of", lambda address: [{"CPU": 4.0}])
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    resources = capacity.check_workers(needs)
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
    assert capacity.check_workers(Needs(workers=2)) == "local, 16 cores; 2 workers with 1 GPU each"


@pytest.mark.parametrize(
    ("gpus", "needs", "message"),
    [
        (
            ["0", "1"],
            Needs(workers=8),
            "GPUs of this machine, 2, got 8; for more, set RAY_ADDRESS .*, or use --set",
        ),
        (["0"], Needs(accelerator_type="H100", workers=0), "^accelerator_type .* empty without a cluster, got 'H100'"),
        ([], Needs(device="cuda"), "machine: no driver; use a cluster with .*, or use --set device=cpu"),
    ],
)
def test_what_this_machine_does_not_have_is_refused_with_the_next_step(
    monkeypatch: pytest.MonkeyPatch, gpus: list[str], needs: Needs, message: str
) -> None:
    use_machine(monkeypatch, gpus=gpus)
    monkeypatch.setattr(devices, "trouble_in_child", lambda: "no driver")
    with pytest.raises(ValueError, match=message):
        capacity.check_workers(needs)


@pytest.mark.parametrize("device", ["auto", "cuda"])
def test_a_gpu_that_torch_finds_but_cannot_compute_on_is_an_error_that_names_the_node(
    monkeypatch: pytest.MonkeyPatch, device: str
) -> None:
    def refuse(*shape: int, device: torch.device) -> torch.Tensor:
        raise torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaError' in the documentation")

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch, "ones", refuse)
    with pytest.raises(devices.UnusableGpu) as raised:
        devices.choose(device, where="10.0.0.7 (ab12cd34)", number=1)
    assert str(raised.value) == (
        f"torch cannot use a GPU on node 10.0.0.7 (ab12cd34): torch {torch.__version__} says: CUDA error: out of "
        "memory; check CUDA_VISIBLE_DEVICES and nvidia-smi there, and that it is a build for these GPUs; or "
        f"{devices.CPU_ADVICE}"
    )


@pytest.mark.skipif(torch.cuda.is_available(), reason="torch can use the GPU of this machine")
def test_auto_takes_the_cpu_where_there_is_no_gpu_and_cuda_is_a_permanent_error_with_the_next_step() -> None:
    assert devices.choose("auto", where="a") == torch.device("cpu")
    with pytest.raises(devices.UnusableGpu, match=r"^torch cannot use a GPU on node b: torch .* says: ") as raised:
        devices.choose("cuda", where="b")
    assert str(raised.value).endswith("; or use --set device=cpu to compute on CPUs")
    assert error_policy.is_permanent(raised.value)
