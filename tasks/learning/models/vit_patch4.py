"""torchvision's vision transformer with patches of 4 x 4 pixels, for small images."""

from collections.abc import Sequence

from torch import nn
from torchvision.models import VisionTransformer

from tasks.learning.models import with_channels

_PATCH = 4


def build(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Build a ViT with 12 layers, 8 heads and width 384 (the sizes of Ray Train's CIFAR-10 tutorial); random weights.

    Raises `ValueError` unless images are square with a side that is a multiple of the patch size.
    """
    height, width, channels = image_shape
    if height != width or height % _PATCH:
        raise ValueError(
            f"model vit-patch4 requires square images with a side that is a multiple of {_PATCH}, got {height} x "
            f"{width}"
        )
    model = VisionTransformer(
        image_size=height,
        patch_size=_PATCH,
        num_layers=12,
        num_heads=8,
        hidden_dim=384,
        mlp_dim=768,
        num_classes=num_classes,
    )
    return with_channels(model, channels)
