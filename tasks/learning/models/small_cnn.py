"""Small CNN with two convolutions and two linear layers, for quick trials where accuracy does not matter."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def build(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Build a small CNN for images of any size; random weights."""
    return SmallCNN(channels=image_shape[2], num_classes=num_classes)


class SmallCNN(nn.Module):
    """CNN with about 50,000 parameters, independent of the size of the images (BCHW)."""

    def __init__(self, *, channels: int, num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(
            *(nn.Conv2d(channels, 16, kernel_size=3, stride=2, padding=1), nn.ReLU()),
            *(nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1), nn.ReLU()),
            nn.AdaptiveAvgPool2d(4),
        )
        self.head = nn.Sequential(nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, num_classes))

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(torch.flatten(self.features(images), 1))
        return logits
