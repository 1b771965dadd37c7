"""Models of the tests: of some kilobytes, or with a habit that people's own models have."""

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchvision.models import VisionTransformer
from torchvision.ops import DropBlock2d, StochasticDepth

from tasks.learning import models


def small(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """One convolution and one linear layer; no batch norm, so that ranks compute what one process does."""
    convolution = nn.Conv2d(image_shape[2], 8, kernel_size=5, stride=2)
    return nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, num_classes))


def unsteady(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """A model with running statistics and dropout: each pass leaves a trace in its buffers and random numbers."""
    convolution = nn.Conv2d(image_shape[2], 8, kernel_size=5, stride=2)
    layers = (convolution, nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Dropout(0.2))
    return nn.Sequential(*layers, nn.Linear(128, num_classes))


def idle(**how: Any) -> nn.Module:
    """The small model with a weight that no output depends on, and so never gets a gradient."""
    model = small(**how)
    model.register_parameter("idle", nn.Parameter(torch.ones(3)))
    return model


def drawing(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """A model that draws from torch's, NumPy's and Python's generators.

    Dropout of pixels comes first, so that what was dropped can be told from its output.
    """
    return nn.Sequential(
        nn.Dropout(0.1),
        nn.Conv2d(image_shape[2], 8, kernel_size=5, stride=2),
        DropBlock2d(0.2, block_size=3),
        StochasticDepth(0.3, mode="row"),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Dropout(0.2),
        _Noise(),
        nn.Linear(128, num_classes),
    )


class _Noise(nn.Module):
    def forward(self, features: Tensor) -> Tensor:
        return features * (random.uniform(0.9, 1.1) * np.random.uniform(0.9, 1.1)) if self.training else features


def vit_tiny(*, num_classes: int, **_: Any) -> nn.Module:
    """A vision transformer for images of 32 x 32 pixels, a few thousand weights; no batch norm and no dropout."""
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
    model: nn.Module = VisionTransformer(image_size=32, patch_size=8, num_classes=num_classes, **sizes)
    return model


class Branching(nn.Module):
    """A model that looks at its numbers to decide what to compute, which no exported graph can."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.inner = models.small_cnn(**how)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.inner(-images if images.mean() > 100 else images)
        return logits


class TwoFaced(nn.Module):
    """A model that computes something else while it is exported, as a mistaken conversion would."""

    def __init__(self, **how: Any) -> None:
        super().__init__()
        self.inner = models.small_cnn(**how)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.inner(images)
        return 1.01 * logits if torch.compiler.is_exporting() else logits


MODELS = {
    "small": small,
    "idle": idle,
    "unsteady": unsteady,
    "drawing": drawing,
    "vit-tiny": vit_tiny,
    "branching": Branching,
    "two-faced": TwoFaced,
}
