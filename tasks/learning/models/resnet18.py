"""torchvision's ResNet-18 with a first layer for any number of channels."""

from collections.abc import Sequence

from torch import nn
from torchvision.models import resnet18

from tasks.learning.models import with_channels


def build(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Build ResNet-18 (He et al. 2015) whose 7x7 first layer takes any number of channels; random weights."""
    return with_channels(resnet18(num_classes=num_classes), image_shape[2])
