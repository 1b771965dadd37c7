"""Augmentation: random changes of training images, drawn from a generator on the CPU, applied on their device."""

import math
from collections.abc import Iterator
from typing import Self

import torch
from torch import Tensor, nn

from tasks.learning.variants import Augment

_TRIES = 10
"""Draws of an erased rectangle until one fits, as in torchvision; then none is erased."""
_DRAWN_AT_ONCE = 2**20
"""Most random numbers that are drawn, and copied to the device, at once."""


def drawn(
    steps: int, batch_size: int, *, max_shift: int, mirrors: bool, generator: torch.Generator, device: torch.device
) -> Iterator[Tensor]:
    """Yield the random numbers of each of `steps` steps, on `device`; they are the same on every device.

    The numbers of many steps are drawn together: on a GPU, the host would wait for a copy in every step.

    Yields:
        int64, (numbers per row, batch_size): two for `shifted`, unless `max_shift` is 0, then one for `flipped`, if any
        `mirrors`. They come from `generator`, on the CPU.
    """
    numbers_per_row = 2 * bool(max_shift) + mirrors
    at_once = max(1, _DRAWN_AT_ONCE // (batch_size * max(1, numbers_per_row)))
    for start in range(0, steps, at_once):
        shape = (min(at_once, steps - start), numbers_per_row, batch_size)
        chunk = torch.empty(shape, dtype=torch.int64, pin_memory=device.type == "cuda")
        for numbers in chunk:
            if max_shift:
                numbers[:2] = torch.randint(0, 2 * max_shift + 1, (2, batch_size), generator=generator)
            if mirrors:
                numbers[-1] = torch.randint(0, 2, (batch_size,), generator=generator)
        yield from chunk.to(device, non_blocking=True)


def shifted(images_BHWC: Tensor, offsets_2B: Tensor, *, max_shift: int) -> Tensor:
    """Shift each image (uint8) by its own number of whole pixels, up to `max_shift` each way; fill with black.

    The offsets (int64) go from 0 to 2 * max_shift: down and right, plus `max_shift`.
    """
    if max_shift == 0:
        return images_BHWC
    batch, height, width, _ = images_BHWC.shape
    padded = nn.functional.pad(images_BHWC, (0, 0, max_shift, max_shift, max_shift, max_shift))
    rows = offsets_2B[0, :, None] + torch.arange(height, device=padded.device)
    columns = offsets_2B[1, :, None] + torch.arange(width, device=padded.device)
    index = torch.arange(batch, device=padded.device)[:, None, None]
    return padded[index, rows[:, :, None], columns[:, None, :]]


def flipped(images_BHWC: Tensor, chosen_B: Tensor) -> Tensor:
    """Mirror the images left to right where `chosen_B` is not 0."""
    return torch.where(chosen_B.bool()[:, None, None, None], images_BHWC.flip(2), images_BHWC)


class RandomTransforms:
    """Changes of a batch: `policy` and `erasing` of each image, then torchvision's `mixup` or `cutmix` of all.

    They draw from torch's global generator on the CPU, which the caller seeds, and compute on the images' device.
    """

    def __init__(self, settings: Augment, *, num_classes: int) -> None:
        from torchvision.transforms import v2  # takes seconds

        self.policy, self.erasing = settings.policy, settings.erasing
        mixes = {v2.MixUp: settings.mixup, v2.CutMix: settings.cutmix}
        chosen = [mix(alpha=alpha, num_classes=num_classes) for mix, alpha in mixes.items() if alpha]
        self.mix = v2.RandomChoice(chosen) if chosen else None

    @classmethod
    def of(cls, settings: Augment, *, num_classes: int) -> Self | None:
        """Return the transforms of `settings`; None if there are none, so that torchvision need not be imported."""
        # A setting that is not listed here does nothing on its own.
        is_any = settings.policy != "none" or settings.erasing or settings.mixup or settings.cutmix
        return cls(settings, num_classes=num_classes) if is_any else None

    def __call__(self, images_BHWC: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """Return changed images (uint8, BHWC); mixed labels become shares of the classes (float32, (B, classes))."""
        images = images_BHWC.permute(0, 3, 1, 2)
        if self.policy == "trivial":
            from tasks.learning import trivial_augment  # torchvision, which takes seconds

            images = trivial_augment.apply(images, *trivial_augment.draw(len(images)))
        if self.erasing:
            images = erased(images, rectangles(*images.shape[:1], *images.shape[2:], share=self.erasing))
        if self.mix is not None:
            images, labels = self.mix(images.float(), labels)
            images = images.round().to(torch.uint8)
        return images.permute(0, 2, 3, 1).contiguous(), labels


def rectangles(count: int, height: int, width: int, *, share: float) -> Tensor:
    """Draw a rectangle for each image with the probability `share`, with the sizes of torchvision's `RandomErasing`.

    Its area is 2 to 33% of the image's, its height 0.3 to 3.3 times its width; the first of ten draws that fits counts.

    Returns:
        int64, (4, count): top, bottom, left and right; an empty rectangle where there is none.
    """
    areas = height * width * torch.empty(count, _TRIES).uniform_(0.02, 0.33)
    ratios = torch.empty(count, _TRIES).uniform_(math.log(0.3), math.log(3.3)).exp()
    heights, widths = (areas * ratios).sqrt().round(), (areas / ratios).sqrt().round()
    fits = (heights < height) & (widths < width)
    chosen = fits.int().argmax(1, keepdim=True)
    is_erased = fits.any(1) & (torch.rand(count) < share)
    tall, wide = (sizes.gather(1, chosen)[:, 0] * is_erased for sizes in (heights, widths))
    top, left = ((torch.rand(count) * (size - side + 1)).floor() for size, side in ((height, tall), (width, wide)))
    return torch.stack([top, top + tall, left, left + wide]).long()


def erased(images_BCHW: Tensor, rectangles_4B: Tensor) -> Tensor:
    """Fill the rectangle of each image with black."""
    top, bottom, left, right = rectangles_4B.to(images_BCHW.device, non_blocking=True)[:, :, None]
    rows, columns = (torch.arange(size, device=images_BCHW.device) for size in images_BCHW.shape[2:])
    is_row, is_column = (rows >= top) & (rows < bottom), (columns >= left) & (columns < right)
    return images_BCHW.mul(~(is_row[:, :, None] & is_column[:, None, :])[:, None])
