"""A model that looks at its numbers to decide what to compute, which no exported graph can."""

from collections.abc import Sequence

from torch import Tensor, nn

from tasks.learning.models import small_cnn


def build(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Build the small CNN."""
    return Branching(channels=image_shape[2], num_classes=num_classes)


class Branching(small_cnn.SmallCNN):
    def forward(self, images: Tensor) -> Tensor:
        if images.mean() > 100:
            return super().forward(-images)
        return super().forward(images)
