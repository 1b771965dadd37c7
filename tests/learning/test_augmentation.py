"""torchvision's random transforms of a batch: what they change, and that the seed alone decides it."""

from typing import Any

import pytest
import torch

from tasks.learning.augmentation import RandomTransforms, shifted
from tasks.learning.loop import Batch, seed_everything
from tasks.learning.recipes import PixelAugment

_LABELS = torch.arange(64) % 5


def images(channels: int) -> torch.Tensor:
    """64 images without a black pixel."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(1, 256, (64, 16, 12, channels), dtype=torch.uint8, generator=generator)


def changed(batch: torch.Tensor, *, seed: int = 0, **settings: Any) -> Batch:
    transforms = RandomTransforms.of(PixelAugment(**settings), num_classes=5)
    assert transforms is not None
    seed_everything(seed)
    return transforms(batch, _LABELS)


@pytest.mark.parametrize(
    ("settings", "channels"),
    [({"policy": "trivial"}, 1), ({"policy": "trivial"}, 3), ({"erasing": 0.5}, 1), ({"mixup": 0.2, "cutmix": 1.0}, 3)],
    ids=str,
)
def test_seed_alone_decides_what_is_changed(settings: dict[str, Any], channels: int) -> None:
    (first, labels), (same, _), (other, _) = (changed(images(channels), seed=seed, **settings) for seed in (0, 0, 1))
    assert first.dtype == torch.uint8 and first.shape == images(channels).shape
    assert torch.equal(first, same) and not torch.equal(first, other) and not torch.equal(first, images(channels))
    is_mixed = "mixup" in settings or "cutmix" in settings
    assert labels.shape == ((64, 5) if is_mixed else (64,))


def test_each_image_is_changed_on_its_own_and_its_label_stays() -> None:
    batch = images(3)[:1].expand(64, -1, -1, -1)
    pixels, labels = changed(batch, policy="trivial")
    assert len({image.numpy().tobytes() for image in pixels}) > 20 and torch.equal(labels, _LABELS)


def test_share_of_the_images_loses_a_rectangle() -> None:
    pixels, _ = changed(images(3), erasing=0.5)
    is_erased = (pixels == 0).flatten(1).any(1)
    assert 16 < int(is_erased.sum()) < 48
    assert torch.equal(pixels[~is_erased], images(3)[~is_erased])


def test_each_image_moves_by_its_own_offset_and_black_comes_in() -> None:
    image = torch.tensor([[1, 2], [3, 4]], dtype=torch.uint8)[None, :, :, None]
    moved = shifted(image.expand(3, -1, -1, -1), torch.tensor([[1, 0, 1], [1, 1, 2]]), max_shift=1)
    assert moved[..., 0].tolist() == [[[1, 2], [3, 4]], [[0, 0], [1, 2]], [[2, 0], [4, 0]]]
