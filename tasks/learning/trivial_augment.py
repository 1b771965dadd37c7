"""TrivialAugment of a batch: one of 14 operations for each image, computed for all images of an operation at once.

Operations, bins and signs are those of torchvision's `TrivialAugmentWide` (Mueller and Hutter 2021).
"""

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import conv2d, grid_sample
from torchvision.transforms.v2 import functional

_BINS = 31
_GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_BLENDED = ("Brightness", "Color", "Contrast", "Sharpness")
OPERATIONS = ("Identity", *_GEOMETRIC, *_BLENDED, "Posterize", "Solarize", "AutoContrast", "Equalize")
_NUM_SIGNED = 1 + len(_GEOMETRIC) + len(_BLENDED)
_LARGEST = torch.tensor([0, 0.99, 0.99, 32, 32, 135, 0.99, 0.99, 0.99, 0.99, 0, 0, 0, 0])


def draw(count: int) -> tuple[Tensor, Tensor]:
    """Draw from torch's generator on the CPU: operations (int64, (B,)) and their magnitudes (float32, (B,))."""
    operations, bins = torch.randint(len(OPERATIONS), (count,)), torch.randint(_BINS, (count,))
    shares = bins / (_BINS - 1)
    magnitudes = _LARGEST[operations] * shares * torch.where(torch.rand(count) <= 0.5, -1.0, 1.0)
    magnitudes = torch.where(operations == OPERATIONS.index("Posterize"), (8 - 6 * shares).round(), magnitudes)
    return operations, torch.where(operations == OPERATIONS.index("Solarize"), 255 * (1 - shares), magnitudes)


def apply(images_BCHW: Tensor, operations: Tensor, magnitudes: Tensor) -> Tensor:
    """Return the changed images (uint8); `operations` and `magnitudes` are on the CPU, as `draw` gives them."""
    changed, device = images_BCHW.clone(), images_BCHW.device
    chosen = {name: operations == number for number, name in enumerate(OPERATIONS)}
    chosen["geometric"] = functools.reduce(torch.logical_or, [chosen.pop(name) for name in _GEOMETRIC])
    for name, is_chosen in chosen.items():
        rows = is_chosen.nonzero()[:, 0]
        if len(rows) and name != "Identity":
            images, strengths = images_BCHW.index_select(0, rows.to(device)), magnitudes[rows]
            if name == "geometric":
                result = _moved(images, operations[rows], strengths)
            else:
                result = _CHANGES[name](images, strengths.to(device)[:, None, None, None])
            changed.index_copy_(0, rows.to(device), result)
    return changed


def _moved(images: Tensor, operations: Tensor, magnitudes: Tensor) -> Tensor:
    """Shear, translate or rotate each image; fill with black."""
    height, width = images.shape[-2:]
    amount = {name: torch.where(operations == OPERATIONS.index(name), magnitudes, 0).double() for name in _GEOMETRIC}
    angle, one = amount["Rotate"].deg2rad(), torch.ones(len(images), dtype=torch.float64)
    shear_x, shear_y = amount["ShearX"], amount["ShearY"]
    to_source = torch.stack(
        [
            *(angle.cos(), shear_x - angle.sin(), shear_x * height / 2 - amount["TranslateX"].trunc()),
            *(shear_y + angle.sin(), angle.cos() * one, shear_y * width / 2 - amount["TranslateY"].trunc()),
        ],
        dim=1,
    )
    matrices = to_source.view(-1, 2, 3).float().to(images.device)
    columns, rows = (torch.arange(size, device=images.device) - (size - 1) / 2 for size in (width, height))
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    points = torch.stack([x, y, torch.ones_like(x)], dim=-1).view(1, -1, 3).expand(len(images), -1, -1)
    scale = torch.tensor([width / 2, height / 2], device=images.device)
    grid = points.bmm(matrices.transpose(1, 2) / scale).view(-1, height, width, 2)
    return grid_sample(images.float(), grid, mode="nearest", align_corners=False).round().to(torch.uint8)


def _blended(images: Tensor, others: Tensor, magnitudes: Tensor) -> Tensor:
    factors = 1 + magnitudes
    return (images * factors + others * (1 - factors)).clamp(0, 255).to(torch.uint8)


def _with_gray(images: Tensor, magnitudes: Tensor) -> Tensor:
    return _blended(images, _gray(images), magnitudes) if images.shape[1] == 3 else images


def _with_mean(images: Tensor, magnitudes: Tensor) -> Tensor:
    return _blended(images, _gray(images).mean((1, 2, 3), keepdim=True), magnitudes)


def _gray(images: Tensor) -> Tensor:
    weights = torch.tensor([0.2989, 0.587, 0.114], device=images.device)[:, None, None]
    return (images * weights).sum(1, keepdim=True).floor() if images.shape[1] == 3 else images.float()


def _sharpened(images: Tensor, magnitudes: Tensor) -> Tensor:
    if min(images.shape[-2:]) <= 2:
        return images
    kernel = torch.full((images.shape[1], 1, 3, 3), 1 / 13, device=images.device)
    kernel[:, :, 1, 1] = 5 / 13
    inner = images[..., 1:-1, 1:-1].float()
    blurred = conv2d(images.float(), kernel, groups=images.shape[1]).round()
    sharpened = images.clone()
    sharpened[..., 1:-1, 1:-1] = (inner - magnitudes * (blurred - inner)).clamp(0, 255).to(torch.uint8)
    return sharpened


def _posterized(images: Tensor, bits: Tensor) -> Tensor:
    return images & (256 - 2 ** (8 - bits)).to(torch.uint8)


_CHANGES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "Brightness": lambda images, magnitudes: _blended(images, torch.zeros_like(images), magnitudes),
    "Color": _with_gray,
    "Contrast": _with_mean,
    "Sharpness": _sharpened,
    "Posterize": _posterized,
    "Solarize": lambda images, thresholds: torch.where(images >= thresholds, 255 - images, images),
    "AutoContrast": lambda images, _: functional.autocontrast(images),
    "Equalize": lambda images, _: functional.equalize(images),
}
