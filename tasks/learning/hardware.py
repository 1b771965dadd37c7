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
