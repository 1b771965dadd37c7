"""torchvision's vision transformer for images of 32 x 32 pixels, a few thousand weights of it."""

from typing import Any

from torch import nn
from torchvision.models import VisionTransformer


def build(*, num_classes: int, **_: Any) -> nn.Module:
    """Patches of 8 x 8 pixels, two layers; no batch norm and no dropout."""
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
    model: nn.Module = VisionTransformer(image_size=32, patch_size=8, num_classes=num_classes, **sizes)
    return model
