"""A GPU that torch cannot use is an error that says why and what to do, never a reason to compute on the CPU."""

import pytest
import torch

from storage import error_policy
from tasks.resources import devices


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
