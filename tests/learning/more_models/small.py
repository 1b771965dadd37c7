"""A model of some kilobytes, for tests in which the model does not matter."""

from collections.abc import Sequence

from torch import nn


def build(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """One convolution and one linear layer; no batch norm, so that ranks compute what one process does."""
    convolution = nn.Conv2d(image_shape[2], 8, kernel_size=5, stride=2)
    return nn.Sequential(convolution, nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten(), nn.Linear(128, num_classes))
