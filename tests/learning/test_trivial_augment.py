"""TrivialAugment and erasing of a batch: each image as torchvision changes it alone, with the same chances."""

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torchvision.transforms.v2 import functional

from tasks.learning import augmentation, trivial_augment
from tasks.learning.trivial_augment import OPERATIONS

_UP_TO_ONE = ("ShearX", "ShearY", "Brightness", "Color", "Contrast", "Sharpness")
_BINS = {
    **dict.fromkeys(_UP_TO_ONE, torch.linspace(0, 0.99, 31)),
    **dict.fromkeys(("TranslateX", "TranslateY"), torch.linspace(0, 32, 31)),
    "Rotate": torch.linspace(0, 135, 31),
    "Posterize": (8 - torch.arange(31) / 5).round(),
    "Solarize": torch.linspace(1, 0, 31) * 255,
}
"""Magnitudes of torchvision's `TrivialAugmentWide`, in its own arithmetic: 15.999999 moves an image by 15 pixels."""
_UNSIGNED = ("Posterize", "Solarize", "AutoContrast", "Equalize", "Identity")
_EXACT = ("TranslateX", "TranslateY", *_UNSIGNED)


def photos(count: int, channels: int, *, height: int = 40, width: int = 48) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    small = torch.randint(0, 256, (count, channels, 5, 6), generator=generator).float()
    return torch.nn.functional.interpolate(small, (height, width), mode="bicubic").clamp(0, 255).to(torch.uint8)


def alone(image: Tensor, name: str, magnitude: float) -> Tensor:
    """What torchvision makes of one image, called as `TrivialAugmentWide` does."""
    degrees, whole = math.degrees(math.atan(magnitude)), int(magnitude)

    def affine(translate: list[int], shear: list[float], **center: Any) -> Tensor:
        changed: Tensor = functional.affine(image, angle=0.0, translate=translate, scale=1.0, shear=shear, **center)
        return changed

    changes: dict[str, Callable[[], Tensor]] = {
        "ShearX": lambda: affine([0, 0], [degrees, 0.0], center=[0, 0]),
        "ShearY": lambda: affine([0, 0], [0.0, degrees], center=[0, 0]),
        "TranslateX": lambda: affine([whole, 0], [0.0, 0.0]),
        "TranslateY": lambda: affine([0, whole], [0.0, 0.0]),
        "Rotate": lambda: functional.rotate(image, angle=magnitude),
        "Brightness": lambda: functional.adjust_brightness(image, 1 + magnitude),
        "Color": lambda: functional.adjust_saturation(image, 1 + magnitude),
        "Contrast": lambda: functional.adjust_contrast(image, 1 + magnitude),
        "Sharpness": lambda: functional.adjust_sharpness(image, 1 + magnitude),
        "Posterize": lambda: functional.posterize(image, whole),
        "Solarize": lambda: functional.solarize(image, magnitude),
        "AutoContrast": lambda: functional.autocontrast(image),
        "Equalize": lambda: functional.equalize(image),
        "Identity": lambda: image,
    }
    return changes[name]()


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_on_a_batch_is_that_of_torchvision_on_each_image(name: str, channels: int) -> None:
    bins = _BINS.get(name, torch.zeros(31))
    magnitudes = bins if name in _UNSIGNED else torch.cat([bins, -bins])
    images = photos(len(magnitudes), channels)
    changed = trivial_augment.apply(images, torch.full((len(images),), OPERATIONS.index(name)), magnitudes)
    theirs = torch.stack([alone(image, name, float(value)) for image, value in zip(images, magnitudes, strict=True)])
    if name in _EXACT:
        assert torch.equal(changed, theirs)
    else:
        is_other = (changed.int() - theirs.int()).abs() > 1
        # A source halfway between two pixels may be either.
        assert is_other.float().mean((1, 2, 3)).max() <= (0.01 if name in ("ShearX", "ShearY", "Rotate") else 0)


def test_operations_magnitudes_and_signs_are_drawn_as_torchvision_draws_them() -> None:
    torch.manual_seed(0)
    operations, magnitudes = trivial_augment.draw(60_000)
    assert torch.bincount(operations, minlength=14).sub(60_000 / 14).abs().max() < 300
    for number, name in enumerate(OPERATIONS):
        values, bins = magnitudes[operations == number], _BINS.get(name, torch.zeros(1))
        distances, nearest = ((values if name in _UNSIGNED else values.abs())[:, None] - bins).abs().min(1)
        assert distances.max() == 0
        if len({*bins.tolist()}) == 31:
            assert torch.bincount(nearest, minlength=31).sub(len(values) / 31).abs().max() < 60
        if name not in _UNSIGNED:
            assert abs((values > 0).float().mean() - 0.5 * 30 / 31) < 0.03


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations of torch, and the tensors that are copied to the device `meta`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **kwargs or {})
        is_copied = (
            isinstance(result, Tensor) and result.is_meta and any(isinstance(a, Tensor) and a.is_cpu for a in args)
        )
        self.calls["copied" if is_copied and args[0].dim() else "calls"] += 1
        return result


def test_a_batch_takes_few_operations_whatever_its_size_and_one_copy_to_the_device_per_change() -> None:
    counts = []
    for size in (256, 1024):
        torch.manual_seed(0)
        images = photos(size, 3).to("meta")
        with Counted() as counted:
            changed = trivial_augment.apply(images, *trivial_augment.draw(size))
            augmentation.erased(changed, augmentation.rectangles(size, 40, 48, share=0.25))
        assert counted.calls["copied"] == 2
        counts.append(counted.calls["calls"])
    assert counts[0] == counts[1] < 400


def test_images_of_a_batch_do_not_depend_on_each_other() -> None:
    torch.manual_seed(3)
    images = photos(64, 3)
    operations, magnitudes = trivial_augment.draw(64)
    together = trivial_augment.apply(images, operations, magnitudes)
    for row in range(64):
        one = slice(row, row + 1)
        assert torch.equal(trivial_augment.apply(images[one], operations[one], magnitudes[one]), together[one])


def test_erased_rectangles_have_the_sizes_and_the_share_of_torchvision() -> None:
    torch.manual_seed(0)
    count, height, width = 20_000, 40, 48
    drawn = augmentation.rectangles(count, height, width, share=0.25)
    top, bottom, left, right = drawn
    tall, wide = bottom - top, right - left
    is_erased = tall * wide > 0
    assert abs(is_erased.float().mean() - 0.25) < 0.01
    assert (top >= 0).all() and (bottom <= height).all() and (left >= 0).all() and (right <= width).all()
    shares = (tall * wide)[is_erased] / (height * width)
    assert 0.015 < shares.min() < 0.03 and 0.3 < shares.max() < 0.36
    ratios = (tall[is_erased] / wide[is_erased]).log()
    assert ratios.min() > math.log(0.25) and ratios.max() < math.log(4) and ratios.mean().abs() < 0.05
    images = torch.full((50, 3, height, width), 7, dtype=torch.uint8)
    blank = augmentation.erased(images, drawn[:, :50]) == 0
    assert torch.equal(blank.sum((1, 2, 3)), 3 * (tall * wide)[:50])
