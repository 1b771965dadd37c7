"""Hardware and versions: what decides the last bits of a computation besides itself, in one line of text."""

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import device as torch_device

_SETTINGS = ("DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
"""Environment variables that change how the libraries used by torch compute."""
_EXTENSIONS = ("amx", "asimd", "avx", "bf16", "fma", "i8mm", "neon", "sve", "vsx")
"""Prefixes of the CPU capabilities by which the libraries used by torch choose their code."""

_A100 = ("NVIDIA A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe")
_PEAK_TFLOPS = {"NVIDIA H100 80GB HBM3": 989, "NVIDIA H100 PCIe": 756, "NVIDIA H200": 989, "NVIDIA B200": 2250}
_PEAK_TFLOPS |= {"NVIDIA L4": 121, "NVIDIA L40S": 362} | dict.fromkeys(_A100, 312)
"""Dense bf16 arithmetic by a GPU's name, from NVIDIA's data sheets."""


def busy_share(device: "torch_device") -> float:
    """Return the share of the last second or less in which a GPU computed, by NVML; 0 if that is not known."""
    import torch

    try:
        return torch.cuda.utilization(device) / 100
    except Exception:  # NVML is missing, or the process has a part of a GPU (MIG)
        return 0.0


def mfu(gpu: str, *, flops: float, seconds: float) -> float:
    """Return the share of its peak that a GPU of this name reached; 0 if the peak is not known."""
    return flops / (seconds * _PEAK_TFLOPS[gpu] * 1e12) if gpu in _PEAK_TFLOPS and seconds else 0.0


def here(device: "torch_device", *, precision: str) -> str:
    """Return hardware and versions of this process; if equal, a computation gives the same bits on a CPU in fp32.

    Training also needs the same number of threads; a forward pass gave the same bits with 1 to 4 (torch 2.14).
    """
    import torch  # not needed to read what was recorded

    if device.type == "cuda":
        is_tf32 = torch.backends.cudnn.allow_tf32 or torch.get_float32_matmul_precision() != "highest"
        parts = [torch.cuda.get_device_name(device), "sm_{}{}".format(*torch.cuda.get_device_capability(device))]
        parts += ["TF32" if is_tf32 else "no TF32", *["cudnn.benchmark"] * torch.backends.cudnn.benchmark]
        parts += [f"cuDNN {torch.backends.cudnn.version()}"]
    else:
        has = torch.cpu.get_capabilities()
        parts = [str(has.get("cpu_name") or has.get("architecture")), torch.backends.cpu.get_cpu_capability()]
        parts += [f"{name}={os.environ[name]}" for name in _SETTINGS if os.environ.get(name)]
        parts += [" ".join(sorted(name for name in has if name.startswith(_EXTENSIONS) and has[name]))]
    return f"{precision} on {device.type}: {', '.join([*parts, f'torch {torch.__version__}'])}"


def is_reproducible(hardware: Sequence[str]) -> bool:
    """Return whether doing it again there gives the same bytes: all parts ran on one kind of CPU in fp32."""
    return len(hardware) == 1 and hardware[0].startswith("fp32 on cpu: ")
