"""TrivialAugment of a batch: one of 14 operations for each image, computed for all images of an operation at once.

Operations, bins and signs are those of torchvision's `TrivialAugmentWide` (Mueller and Hutter 2021).
"""

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, grid_sample
from torchvision.transforms.v2 import functional

_BINS = 31
_GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_BLENDED = {  # each image with what torchvision makes of it at factor 0
    "Brightness": lambda images: functional.adjust_brightness(images, 0),
    "Color": lambda images: functional.adjust_saturation(images, 0),
    "Contrast": lambda images: functional.adjust_contrast(images, 0),
    "Sharpness": lambda images: _blurred(images),
}
OPERATIONS = (*_GEOMETRIC, *_BLENDED, "Posterize", "Solarize", "AutoContrast", "Equalize", "Identity")
_LARGEST = torch.tensor([0.99, 0.99, 32, 32, 135, 0.99, 0.99, 0.99, 0.99, 0, 0, 0, 0, 0])


def draw(count: int) -> tuple[Tensor, Tensor]:
    """Draw from torch's generator on the CPU: operations (int64, (B,)) and their magnitudes (float32, (B,))."""
    operations, shares = torch.randint(len(OPERATIONS), (count,)), torch.randint(_BINS, (count,)) / (_BINS - 1)
    magnitudes = _LARGEST[operations] * shares * torch.where(torch.rand(count) <= 0.5, -1.0, 1.0)
    magnitudes = torch.where(operations == OPERATIONS.index("Posterize"), (8 - 6 * shares).round(), magnitudes)
    return operations, torch.where(operations == OPERATIONS.index("Solarize"), 255 * (1 - shares), magnitudes)


def apply(images_BCHW: Tensor, operations: Tensor, magnitudes: Tensor) -> Tensor:
    """Return the changed images (uint8); `operations` and `magnitudes` are on the CPU, as `draw` gives them."""
    groups = operations.where(operations >= len(_GEOMETRIC), 0)  # one of all geometric operations
    order = groups.argsort(stable=True)
    numbers = torch.stack([order, operations[order], magnitudes[order]]).to(images_BCHW.device, non_blocking=True)
    parts = numbers.split(torch.bincount(groups, minlength=len(OPERATIONS)).tolist(), dim=1)
    changed = images_BCHW.clone(memory_format=torch.contiguous_format)
    for name, (rows, chosen, strengths) in zip(OPERATIONS[:-1], parts, strict=False):
        if len(rows):
            images, amounts = images_BCHW[rows.long()].contiguous(), strengths.float()[:, None, None, None]
            changed[rows.long()] = (
                _moved(images, chosen, strengths) if name in _GEOMETRIC else _recolored(name, images, amounts)
            )
    return changed


def _moved(images: Tensor, chosen: Tensor, strengths: Tensor) -> Tensor:
    """Shear, translate or rotate each image; fill with black. In products of numbers: a GPU's matrices may be TF32."""
    height, width = images.shape[-2:]
    is_chosen = chosen == torch.arange(len(_GEOMETRIC), device=images.device)[:, None]
    shear_x, shear_y, right, down, angle = (strengths * is_chosen)[:, :, None, None]
    cosine, sine = angle.deg2rad().cos(), angle.deg2rad().sin()
    x, y = ((torch.arange(size, device=images.device) - (size - 1) / 2) for size in (width, height))
    rows = y[:, None]
    source_x = cosine.float() * x + ((shear_x - sine).float() * rows + (shear_x * height / 2 - right.trunc()).float())
    source_y = (shear_y + sine).float() * x + (cosine.float() * rows + (shear_y * width / 2 - down.trunc()).float())
    grid = torch.stack([source_x / (width / 2), source_y / (height / 2)], dim=-1)
    return grid_sample(images.float(), grid, mode="nearest", align_corners=False).to(torch.uint8)


def _recolored(name: str, images: Tensor, amounts: Tensor) -> Tensor:
    match name:
        case "Posterize":
            return images & (256 - 2 ** (8 - amounts)).to(torch.uint8)
        case "Solarize":
            return torch.where(images >= amounts, 255 - images, images)
        case "AutoContrast" | "Equalize":
            return functional.autocontrast(images) if name == "AutoContrast" else functional.equalize(images)
    return _BLENDED[name](images).float().lerp_(images.float(), 1 + amounts).clamp_(0, 255).to(torch.uint8)


def _blurred(images: Tensor) -> Tensor:
    """As torchvision's `adjust_sharpness` at factor 0, which copies a kernel to the device in each call."""
    blurred = images.float()
    inner = blurred[..., 1:-1, 1:-1]
    inner.copy_(((9 * avg_pool2d(blurred, 3, 1, padding=1)[..., 1:-1, 1:-1] + 4 * inner) / 13).round())
    return blurred
