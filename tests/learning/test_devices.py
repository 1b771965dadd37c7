"""A GPU that torch cannot use is an error that says why and what to do, never a reason to compute on the CPU."""

import re

import pytest
import torch

from storage import error_policy
from tasks.learning import devices

no_gpu_here = pytest.mark.skipif(torch.cuda.is_available(), reason="torch can use the GPU of this machine")
TOO_OLD = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU driver by downloading "
    "and installing a new version"
)


def test_what_asks_for_no_gpu_computes_on_the_cpu_without_a_look_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "trouble", lambda: pytest.fail("it looked"))
    assert devices.choose("cpu", where="a") == torch.device("cpu")


@no_gpu_here
def test_auto_takes_the_cpu_where_there_is_no_gpu() -> None:
    assert devices.choose("auto", where="a") == torch.device("cpu")


def test_a_gpu_that_torch_can_use_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [devices.choose(asked, where="a") for asked in ("auto", "cuda")] == [torch.device("cuda", 0)] * 2


@no_gpu_here
@pytest.mark.parametrize(
    ("attribute", "value", "says"),
    [
        ("torch.version.cuda", None, r"torch \S+ is a build for CPUs only; install requirements.lock there"),
        (
            "torch.cuda.init",
            RuntimeError("Found no NVIDIA driver on your system. Please check"),
            "Found no NVIDIA driver",
        ),
        ("torch.cuda.init", RuntimeError(TOO_OLD), r"is too old \(found version 11040\); update NVIDIA's driver there"),
        ("torch.cuda.init", None, "finds no GPU; check CUDA_VISIBLE_DEVICES there"),
    ],
    ids=["a build for CPUs", "no driver", "an old driver", "hidden"],
)
def test_a_gpu_that_torch_cannot_use_is_a_permanent_error_that_names_node_reason_and_next_step(
    monkeypatch: pytest.MonkeyPatch, attribute: str, value: Exception | None, says: str
) -> None:
    def init() -> None:
        if value:
            raise value

    monkeypatch.setattr("torch.version.cuda", "13.0")
    monkeypatch.setattr(attribute, init if attribute.endswith("init") else value)
    with pytest.raises(devices.UnusableGpu) as raised:
        devices.choose("cuda", where="10.0.0.7 (ab12cd34)")
    told = str(raised.value)
    assert told.startswith("torch cannot use a GPU on node 10.0.0.7 (ab12cd34): ") and re.search(says, told)
    assert told.endswith("; or use --set device=cpu to compute on CPUs")
    assert error_policy.is_permanent(raised.value)


@no_gpu_here
def test_a_child_tells_the_same_without_torch_in_this_process() -> None:
    assert devices.trouble_in_child() == devices.trouble()
