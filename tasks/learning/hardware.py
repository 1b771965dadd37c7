"""Hardware and versions: everything besides the computation itself that decides its last bits."""

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel

if TYPE_CHECKING:
    from torch import device as torch_device

_SETTINGS = ("DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
"""Environment variables that change how the libraries used by torch compute."""
_EXTENSIONS = ("amx", "asimd", "avx", "bf16", "fma", "i8mm", "neon", "sve", "vsx")
"""Prefixes of the CPU capabilities by which the libraries used by torch choose their code."""


class Hardware(BaseModel, frozen=True, extra="forbid"):
    """Hardware and versions of one process; if equal, the same computation gives the same bits on a CPU in fp32.

    Training also needs the same number of threads, so a resumed training uses the number it began with. A forward pass
    gave the same bits with 1 to 4 threads (ResNet-18, ViT, MobileNetV3 and a small CNN, fp32 and bf16, torch 2.14).
    """

    torch: str
    """Version and build of torch; on a GPU also the version of cuDNN."""
    device: str
    """`cpu` or `cuda`."""
    processor: str
    """Name of the CPU or GPU."""
    instructions: str
    """Instruction set that torch uses, and the settings that change how: environment variables; on a GPU TF32 and
    cuDNN's choice of algorithms by timing."""
    extensions: str
    """CPU capabilities by which the libraries used by torch choose their code; empty on a GPU."""
    precision: str
    """`fp32` or `bf16`."""

    @classmethod
    def here(cls, device: "torch_device", *, precision: str) -> Self:
        """Return the hardware and versions of this process on `device`."""
        import torch  # not needed to read what was recorded

        common = {"device": device.type, "precision": precision}
        if device.type == "cuda":
            version = f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
            is_tf32 = torch.backends.cudnn.allow_tf32 or torch.get_float32_matmul_precision() != "highest"
            settings = ["TF32" if is_tf32 else "no TF32", *["cudnn.benchmark"] * torch.backends.cudnn.benchmark]
            instructions = ", ".join(["sm_{}{}".format(*torch.cuda.get_device_capability(device)), *settings])
            name = torch.cuda.get_device_name(device)
            return cls(torch=version, processor=name, instructions=instructions, extensions="", **common)
        has = torch.cpu.get_capabilities()
        settings = [f"{name}={os.environ[name]}" for name in _SETTINGS if os.environ.get(name)]
        return cls(
            torch=str(torch.__version__),
            processor=str(has.get("cpu_name") or has.get("architecture")),
            instructions=", ".join([torch.backends.cpu.get_cpu_capability(), *settings]),
            extensions=" ".join(sorted(name for name in has if name.startswith(_EXTENSIONS) and has[name])),
            **common,
        )

    def __str__(self) -> str:
        return f"torch {self.torch} in {self.precision} on {self.device} ({self.processor}, {self.instructions})"


def together(*groups: Iterable[Hardware]) -> tuple[Hardware, ...]:
    """Merge `groups` in their order, without duplicates."""
    return tuple(dict.fromkeys(kind for group in groups for kind in group))


def recorded(parts: Sequence[Hardware]) -> dict[str, Any]:
    """Return the entries for a manifest's statistics.

    Args:
        parts: Hardware of all parts of the result, without duplicates.

    Returns:
        `hardware`, and `is_reproducible`: whether doing it again on that hardware gives the same bytes, which holds if
        all parts ran on one kind of CPU in fp32.
    """
    is_fixed = [(part.device, part.precision) for part in parts] == [("cpu", "fp32")]
    return {"hardware": [part.model_dump() for part in parts], "is_reproducible": is_fixed}


def notes(statistics: Mapping[str, Any], *, what: str) -> Iterator[str]:
    """Yield a note for users if parts of a result ran on different hardware or versions."""
    if len(parts := statistics["hardware"]) > 1:
        yield f"{what} ran on different hardware or versions, so its last digits are not reproducible: {listed(parts)}"


def listed(parts: Iterable[dict[str, str]]) -> str:
    """Format hardware as a manifest's statistics hold it."""
    return "; ".join(str(Hardware(**part)) for part in parts)
