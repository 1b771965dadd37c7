"""A classifier that takes raw images: normalisation and augmentation are part of the model, on its device."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from tasks.learning import models


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """All that is needed, beside weights, to build a model again."""

    model: str
    """Name of the architecture in `tasks.learning.models`."""
    image_shape: tuple[int, int, int]
    """Height, width, channels."""
    classes: tuple[str, ...]
    """Name of each class, in the order of the logits."""
    mean: tuple[float, ...]
    """Per channel, of the training rows, in units of 0 to 255."""
    std: tuple[float, ...]
    """Per channel, likewise."""

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "ModelSpec":
        """The spec that `dataclasses.asdict` (or JSON) gave `values` of."""
        read: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list | tuple) else value for name, value in values.items()
        }
        return cls(**read)


class Classifier(nn.Module):
    """From raw images (uint8, BHWC) to logits (float, (B, classes)); the same normalisation everywhere."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.backbone = models.build(spec.model, image_shape=spec.image_shape, num_classes=len(spec.classes))
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(spec.mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(spec.std, dtype=torch.float32).view(1, -1, 1, 1))

    def forward(self, images_BHWC: Tensor) -> Tensor:
        images_BCHW = images_BHWC.permute(0, 3, 1, 2).to(torch.float32)
        logits: Tensor = self.backbone((images_BCHW - self.mean) / self.std)
        return logits


def shifted(images_BHWC: Tensor, *, max_shift: int, generator: torch.Generator) -> Tensor:
    """Each image moved by its own random whole number of pixels, up to `max_shift` each way; black comes in.

    `generator` lives on the CPU, so that the shifts are the same on every device.
    """
    if max_shift == 0:
        return images_BHWC
    batch, height, width, _ = images_BHWC.shape
    offsets = torch.randint(0, 2 * max_shift + 1, (2, batch, 1), generator=generator).to(images_BHWC.device)
    padded = nn.functional.pad(images_BHWC, (0, 0, max_shift, max_shift, max_shift, max_shift))
    rows = offsets[0] + torch.arange(height, device=padded.device)
    columns = offsets[1] + torch.arange(width, device=padded.device)
    index = torch.arange(batch, device=padded.device)[:, None, None]
    return padded[index, rows[:, :, None], columns[:, None, :]]


def flipped(images_BHWC: Tensor, *, generator: torch.Generator) -> Tensor:
    """Every second image, by chance, mirrored left to right; `generator` lives on the CPU."""
    chosen = torch.randint(0, 2, (len(images_BHWC), 1, 1, 1), generator=generator).to(images_BHWC.device)
    return torch.where(chosen.bool(), images_BHWC.flip(2), images_BHWC)


def resolve_precision(asked: str, device: torch.device) -> str:
    """`fp32` or `bf16`: what `asked` says, and for `auto` bf16 where `device` computes in it."""
    if asked != "auto":
        return asked
    if device.type == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported() else "fp32"
    return "bf16" if torch.cpu._is_avx512_bf16_supported() else "fp32"


def autocast(precision: str, device: torch.device) -> torch.autocast:
    """The context in which a forward pass runs at `precision`."""
    return torch.autocast(device.type, dtype=torch.bfloat16, enabled=precision == "bf16")


def place(model: Classifier, *, precision: str, device: torch.device) -> Classifier:
    """`model` on `device`, in the memory format that is fastest at `precision`.

    Channels last pays on the CPU only together with bf16: alone in fp32 it was seen four times slower.
    """
    channels_last = precision == "bf16" or device.type == "cuda"
    model.backbone.to(memory_format=torch.channels_last if channels_last else torch.contiguous_format)
    return model.to(device)
