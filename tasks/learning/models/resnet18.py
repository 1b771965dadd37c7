"""torchvision's ResNet-18 with a first layer for any number of channels."""

from collections.abc import Sequence

from torch import nn
from torchvision.models import resnet18

from tasks.learning.models import with_channels


def build(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """ResNet-18 (He et al. 2015) with its 7x7 first layer taking any number of channels; weights at random."""
    return with_channels(resnet18(num_classes=num_classes), image_shape[2])
