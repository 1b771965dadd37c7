"""EfficientNet-Lite0's ImageNet weights, from a package, named as in timm's `tf_efficientnet_lite0`."""

from pathlib import Path

from tasks.learning import pretrained

MODEL = "timm/tf_efficientnet_lite0"


def write(folder: Path) -> Path:
    """Write `lite0.safetensors`."""
    pretrained.save_published(MODEL, folder / "lite0.safetensors")
    return folder / "lite0.safetensors"
