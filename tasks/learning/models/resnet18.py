"""torchvision's ResNet-18 with a first layer for any number of channels."""

from collections.abc import Sequence

from torch import nn
from torchvision.models import resnet18


def build(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """ResNet-18 (He et al. 2015) with its 7x7 first layer taking any number of channels; weights at random."""
    model: nn.Module = resnet18(num_classes=num_classes)
    model.conv1 = nn.Conv2d(image_shape[2], 64, kernel_size=7, stride=2, padding=3, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model
