"""The share of a machine that a run uses: its cores and its GPUs."""

import os
from pathlib import Path

import pytest

from tasks.resources import capacity, machine


def test_cores_that_there_are_not_are_refused_by_name(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    request.addfinalizer(lambda: machine.choose(None))
    most = len(os.sched_getaffinity(0))
    for wrong in (0, -1, most + 1):
        machine.choose(wrong)
        with pytest.raises(ValueError, match=f"--cores must be 1 to {most} on this machine, got {wrong}"):
            capacity.check_workers(None)
    machine.choose(1)
    assert capacity.check_workers(None).startswith("local, 1 core")
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    with pytest.raises(ValueError, match=r"cannot be used with RAY_ADDRESS; .* cpus_per_worker"):
        capacity.check_workers(None)
    assert capacity.check_workers(0), "without the cluster"


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
