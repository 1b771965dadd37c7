"""torchvision's ResNet-18 for small images, which its original first layers would shrink to almost nothing."""

from collections.abc import Sequence

from torch import nn
from torchvision.models import resnet18


def build(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Build ResNet-18 with a 3x3 first convolution and no pooling (He et al. 2015, on CIFAR); random weights."""
    model: nn.Module = resnet18(num_classes=num_classes)
    model.conv1 = nn.Conv2d(image_shape[2], 64, kernel_size=3, stride=1, padding=1, bias=False)
    nn.init.kaiming_normal_(model.conv1.weight, mode="fan_out", nonlinearity="relu")
    model.maxpool = nn.Identity()
    return model
