"""A GPU that torch cannot use is an error that says why and what to do, never a reason to compute on the CPU."""

import pytest
import torch

from storage import error_policy
from tasks.resources import devices


@pytest.fixture
def ones(monkeypatch: pytest.MonkeyPatch) -> list[torch.device]:
    """Two GPUs that torch finds; the devices of all tensors of ones, which are on the CPU here."""
    asked, make = list[torch.device](), torch.ones

    def on_cpu(*shape: int, device: torch.device) -> torch.Tensor:
        asked.append(device)
        return make(*shape)

    monkeypatch.setattr(torch, "ones", on_cpu)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    return asked


def test_a_gpu_that_torch_can_compute_on_is_taken(ones: list[torch.device]) -> None:
    assert [devices.choose(asked, where="a") for asked in ("auto", "cuda")] == [torch.device("cuda", 0)] * 2
    assert devices.choose("cuda", where="a", number=1) == torch.device("cuda", 1)
    assert [str(device) for device in ones] == ["cuda:0", "cuda:0", "cuda:1"], "only on the process's own"


@pytest.mark.parametrize("asked", ["auto", "cuda"])
@pytest.mark.usefixtures("ones")
def test_a_gpu_that_torch_finds_but_cannot_compute_on_is_a_permanent_error_that_names_the_node(
    monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    def refuse(*shape: int, device: torch.device) -> torch.Tensor:
        raise torch.AcceleratorError("CUDA error: out of memory\nSearch for `cudaError' in the documentation")

    monkeypatch.setattr(torch, "ones", refuse)
    with pytest.raises(devices.UnusableGpu) as raised:
        devices.choose(asked, where="10.0.0.7 (ab12cd34)", number=1)
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


def test_compiling_without_a_compiler_is_refused_with_the_next_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler -O2")
    with pytest.raises(ValueError, match="there is no 'no-such-compiler' on node a; install g"):
        devices.check_compiler(where="node a")
