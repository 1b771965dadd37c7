"""torchvision's ResNet-18 with a first layer for any number of channels."""

from torch import nn
from torchvision.models import resnet18


def build(*, channels: int, num_classes: int) -> nn.Module:
    """ResNet-18 (He et al. 2015) with its 7x7 first layer taking `channels`; weights at random."""
    model: nn.Module = resnet18(num_classes=num_classes)
    model.conv1 = nn.Conv2d(channels, 64, kernel_size=7, stride=2, padding=3, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    return model
