"""TrivialAugment and erasing of a batch: each image as torchvision changes it alone, with the same chances."""

import math

import pytest
import torch
from torch import Tensor
from torchvision.transforms.v2 import TrivialAugmentWide, functional

from tasks.learning import augmentation, trivial_augment
from tasks.learning.trivial_augment import OPERATIONS

_CENTER = {"interpolation": functional.InterpolationMode.NEAREST}


def photos(count: int, channels: int, *, height: int = 40, width: int = 48) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    small = torch.randint(0, 256, (count, channels, 5, 6), generator=generator).float()
    return torch.nn.functional.interpolate(small, (height, width), mode="bicubic").clamp(0, 255).to(torch.uint8)


def alone(image: Tensor, name: str, magnitude: float) -> Tensor:
    """What torchvision makes of one image."""
    policy = TrivialAugmentWide()
    changed: Tensor = policy._apply_image_or_video_transform(image, name, magnitude, _CENTER["interpolation"], {})
    return changed


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_on_a_batch_is_that_of_torchvision_on_each_image(name: str, channels: int) -> None:
    torch.manual_seed(1)
    images = photos(31, channels)
    operations, magnitudes = trivial_augment.draw(4000)
    number = OPERATIONS.index(name)
    magnitudes = magnitudes[operations == number][:31]
    changed = trivial_augment.apply(images, torch.full((31,), number), magnitudes)
    for image, ours, magnitude in zip(images, changed, magnitudes.tolist(), strict=True):
        scaled = magnitude / 255 if name == "Solarize" else magnitude
        theirs = alone(image, name, scaled)
        is_other = (ours.int() - theirs.int()).abs() > 1
        assert is_other.float().mean() <= (0.01 if name in ("ShearX", "ShearY", "Rotate") else 0), magnitude


def test_operations_magnitudes_and_signs_are_drawn_as_torchvision_draws_them() -> None:
    torch.manual_seed(0)
    operations, magnitudes = trivial_augment.draw(60_000)
    assert torch.bincount(operations, minlength=14).sub(60_000 / 14).abs().max() < 300
    for number, name in enumerate(OPERATIONS):
        bins, is_signed = TrivialAugmentWide._AUGMENTATION_SPACE[name]
        usual = bins(31, 40, 48)
        values = magnitudes[operations == number]
        if usual is None:
            assert not values.any()
            continue
        usual = usual.float() * (255 if name == "Solarize" else 1)
        known = torch.cat([usual, -usual]) if is_signed else usual
        distances = (values[:, None] - known).abs().min(1).values
        assert distances.max() < 1e-3 and len({*values.tolist()}) >= len({*usual.tolist()})
        assert not is_signed or abs((values > 0).float().mean() - 0.5 * 30 / 31) < 0.03


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
