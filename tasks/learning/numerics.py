"""Numerics: everything besides the computation itself that decides its last bits, such as torch version and device."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel

if TYPE_CHECKING:
    from torch import device as torch_device

_SETTINGS = ("DNNL_MAX_CPU_ISA", "MKL_CBWR", "MKL_ENABLE_INSTRUCTIONS", "ONEDNN_MAX_CPU_ISA")
"""Environment variables that change how the libraries used by torch compute."""
_EXTENSIONS = ("amx", "asimd", "avx", "bf16", "fma", "i8mm", "neon", "sve", "vsx")
"""Prefixes of the CPU capabilities by which the libraries used by torch choose their code."""


class Numerics(BaseModel, frozen=True, extra="forbid"):
    """Numerics of one process; if they are equal, the same computation gives the same bits on a CPU in fp32.

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
        """Return the numerics of this process on `device`."""
        import torch  # not needed to read recorded numerics

        about = {"device": device.type, "precision": precision}
        if device.type == "cuda":
            version = f"{torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
            is_tf32 = torch.backends.cudnn.allow_tf32 or torch.get_float32_matmul_precision() != "highest"
            settings = ["TF32" if is_tf32 else "no TF32", *["cudnn.benchmark"] * torch.backends.cudnn.benchmark]
            instructions = ", ".join(["sm_{}{}".format(*torch.cuda.get_device_capability(device)), *settings])
            name = torch.cuda.get_device_name(device)
            return cls(torch=version, processor=name, instructions=instructions, extensions="", **about)
        has = torch.cpu.get_capabilities()
        settings = [f"{name}={os.environ[name]}" for name in _SETTINGS if os.environ.get(name)]
        return cls(
            torch=str(torch.__version__),
            processor=str(has.get("cpu_name") or has.get("architecture")),
            instructions=", ".join([torch.backends.cpu.get_cpu_capability(), *settings]),
            extensions=" ".join(sorted(name for name in has if name.startswith(_EXTENSIONS) and has[name])),
            **about,
        )

    @classmethod
    def read(cls, content: str | bytes | None) -> Self:
        """Parse what `to_json` wrote; return `UNKNOWN` for none."""
        return cls.model_validate_json(content) if content is not None else cls(**dict(UNKNOWN))

    def to_json(self) -> str:
        """Format as JSON for `read`; equal numerics give equal text."""
        return json.dumps(self.model_dump(), sort_keys=True)

    def __str__(self) -> str:
        if self == UNKNOWN:
            return "unknown"
        return f"torch {self.torch} in {self.precision} on {self.device} ({self.processor}, {self.instructions})"


UNKNOWN = Numerics(
    torch="unknown", device="unknown", processor="unknown", instructions="unknown", extensions="", precision="unknown"
)
"""Numerics of results of earlier versions, which did not record them."""


def together(*groups: Iterable[Numerics]) -> tuple[Numerics, ...]:
    """Merge `groups` in their order, without duplicates."""
    return tuple(dict.fromkeys(one for group in groups for one in group))


def differences(before: Iterable[Numerics], now: Iterable[Numerics]) -> str:
    """Describe in words how `now` differs from `before`."""
    was, is_ = together(before), together(now)
    if was == (UNKNOWN,):
        return "they are from an earlier version, which did not record numerics"
    if len(was) == len(is_) == 1:
        pairs = [(name, value, getattr(is_[0], name)) for name, value in was[0]]
        return ", ".join(f"{name} was {before!r} and is {now!r}" for name, before, now in pairs if before != now)
    return f"{'; '.join(map(str, was))}, now {'; '.join(map(str, is_))}"


def recorded(took_part: Iterable[Numerics] | None, set_aside: Iterable[Numerics] | None) -> dict[str, Any]:
    """Return the entries for a manifest's statistics: `numerics` and, if there are any, `numerics_set_aside`."""
    said = {"numerics": took_part, "numerics_set_aside": set_aside}
    return {name: [one.model_dump() for one in some] for name, some in said.items() if some}


def notes(statistics: Mapping[str, Any], *, what: str) -> Iterator[str]:
    """Yield notes for users: that numerics were mixed, or that work with other numerics was not used."""
    took_part, set_aside = statistics.get("numerics", ()), statistics.get("numerics_set_aside", ())
    if len(took_part) > 1:
        yield f"{what} used mixed numerics, so its last digits may not be reproducible: {listed(took_part)}"
    if set_aside:
        yield f"{what} restarted: the work of an earlier attempt with other numerics was not used: {listed(set_aside)}"


def listed(some: Iterable[dict[str, str]]) -> str:
    """Format numerics as a manifest's statistics hold them."""
    return "; ".join(str(Numerics(**one)) for one in some)
