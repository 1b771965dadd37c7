"""TrivialAugment of a batch: one of 14 operations for each image, computed for all images of an operation at once.

Operations, magnitudes and signs are those of torchvision's `TrivialAugmentWide` (Mueller and Hutter 2021).
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional

_BINS = 31
_GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_BLENDED: dict[str, Callable[[Tensor], Tensor]] = {  # each image with what torchvision makes of it at factor 0
    "Brightness": lambda images: functional.adjust_brightness(images, 0),
    "Color": lambda images: functional.adjust_saturation(images, 0),
    "Contrast": lambda images: functional.adjust_contrast(images, 0),
    "Sharpness": lambda images: _blurred(images),
}
_FIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "AutoContrast": functional.autocontrast,
    "Equalize": functional.equalize,
}
OPERATIONS = (*_GEOMETRIC, *_BLENDED, "Posterize", "Solarize", *_FIXED, "Identity")
_MAGNITUDES = torch.stack(  # torchvision's, to the bit: Translate and Solarize round them
    [
        *(torch.linspace(0, largest, _BINS) for largest in (0.99, 0.99, 32, 32, 135, 0.99, 0.99, 0.99, 0.99)),
        (8 - torch.arange(_BINS) / 5).round(),
        255 * torch.linspace(1, 0, _BINS),
        *torch.zeros(3, _BINS),
    ]
)


def draw(count: int) -> tuple[Tensor, Tensor]:
    """Draw from torch's generator on the CPU: operations (int64, (B,)) and their magnitudes (float32, (B,))."""
    operations, bins = torch.randint(len(OPERATIONS), (count,)), torch.randint(_BINS, (count,))
    is_negative = (torch.rand(count) <= 0.5) & (operations < OPERATIONS.index("Posterize"))
    return operations, _MAGNITUDES[operations, bins] * torch.where(is_negative, -1, 1)


def apply(images_BCHW: Tensor, operations: Tensor, magnitudes: Tensor) -> Tensor:
    """Return the changed images (uint8); `operations` and `magnitudes` are on the CPU, as `draw` gives them."""
    groups = operations.where(operations >= len(_GEOMETRIC), 0)  # one of all geometric operations
    order, sizes = groups.argsort(stable=True), torch.bincount(groups, minlength=len(OPERATIONS)).tolist()
    numbers = torch.stack([order, order.argsort(), operations[order], magnitudes[order]])
    numbers = numbers.to(images_BCHW.device, non_blocking=True)  # all draws in one copy
    images = images_BCHW.contiguous().index_select(0, numbers[0].long()).split(sizes)
    changed = []
    for name, selected, (chosen, strengths) in zip(OPERATIONS, images, numbers[2:].split(sizes, dim=1), strict=True):
        if name in _GEOMETRIC and len(selected):
            changed.append(_moved(selected, chosen, strengths))
        elif len(selected):
            changed.append(_recolored(name, selected, strengths[:, None, None, None]))
    return torch.cat(changed).index_select(0, numbers[1].long())


def _moved(images: Tensor, chosen: Tensor, strengths: Tensor) -> Tensor:
    """Shear, translate or rotate each image; fill with black. In products of numbers: a GPU's matrices may be TF32."""
    height, width = images.shape[-2:]
    is_chosen = chosen == torch.arange(len(_GEOMETRIC), device=images.device)[:, None]
    shear_x, shear_y, right, down, angle = (strengths * is_chosen)[:, :, None, None]
    cosine, sine = angle.deg2rad().cos(), angle.deg2rad().sin()
    x, y = ((torch.arange(size, device=images.device) - (size - 1) / 2) for size in (width, height))
    column = cosine * x + ((shear_x - sine) * y[:, None] + (shear_x * height / 2 - right.trunc()))
    row = (shear_y + sine) * x + (cosine * y[:, None] + (shear_y * width / 2 - down.trunc()))
    column, row = column.add_((width - 1) / 2).round_(), row.add_((height - 1) / 2).round_()
    is_inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = row.clamp_(0, height - 1).mul_(width).add_(column.clamp_(0, width - 1)).long()
    pixels = images.flatten(2).gather(2, source.flatten(1)[:, None].expand(-1, images.shape[1], -1))
    return pixels.view_as(images).mul_(is_inside[:, None])


def _recolored(name: str, images: Tensor, amounts: Tensor) -> Tensor:
    match name:
        case "Identity":
            return images
        case "Posterize":
            lost = (8 - amounts).to(torch.uint8)
            return images >> lost << lost
        case "Solarize":
            is_inverted = images >= amounts.ceil().to(torch.uint8)
            return images.bitwise_xor(is_inverted.to(torch.uint8).neg_())  # 255 - x is x ^ 255
        case "AutoContrast" | "Equalize":
            return _FIXED[name](images)
    return _BLENDED[name](images).float().lerp_(images.float(), 1 + amounts).clamp_(0, 255).to(torch.uint8)


def _blurred(images: Tensor) -> Tensor:
    """As torchvision's `adjust_sharpness` at factor 0, which copies a kernel to the device, without a convolution."""
    blurred = images.float()
    tall = blurred[..., :-2, :] + blurred[..., 1:-1, :] + blurred[..., 2:, :]
    inner = blurred[..., 1:-1, 1:-1]
    inner.mul_(4).add_(tall[..., :-2] + tall[..., 1:-1] + tall[..., 2:]).div_(13).round_()
    return blurred
