"""A small model that draws in every way that models do: from torch's, NumPy's and Python's generators."""

import random
from collections.abc import Sequence

import numpy as np
from torch import Tensor, nn
from torchvision.ops import DropBlock2d, StochasticDepth


class _Noise(nn.Module):
    """Scale by numbers of generators other than torch's, as some people's own layers do."""

    def forward(self, features: Tensor) -> Tensor:
        return features * (random.uniform(0.9, 1.1) * np.random.uniform(0.9, 1.1)) if self.training else features


def build(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Dropout of pixels first, so that what was dropped can be told from its output."""
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
