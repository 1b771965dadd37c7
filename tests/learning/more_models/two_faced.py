"""A model that computes something else while it is exported, as a mistaken conversion would."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tasks.learning.models import small_cnn


def build(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Build the small CNN."""
    return TwoFaced(channels=image_shape[2], num_classes=num_classes)


class TwoFaced(small_cnn.SmallCNN):
    def forward(self, images: Tensor) -> Tensor:
        logits = super().forward(images)
        return 1.01 * logits if torch.compiler.is_exporting() else logits
