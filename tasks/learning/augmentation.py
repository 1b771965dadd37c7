"""Augmentation: random changes of training images, drawn from a generator on the CPU, applied on their device."""

import torch
from torch import Tensor, nn


def shifted(images_BHWC: Tensor, *, max_shift: int, generator: torch.Generator) -> Tensor:
    """Shift each image by its own random number of whole pixels, up to `max_shift` each way; fill with black.

    `generator` must be on the CPU, so that the shifts are the same on every device.
    """
    if max_shift == 0:
        return images_BHWC
    batch, height, width, _ = images_BHWC.shape
    offsets = torch.randint(0, 2 * max_shift + 1, (2, batch, 1), generator=generator).to(images_BHWC.device)
    padded = nn.functional.pad(images_BHWC, (0, 0, max_shift, max_shift, max_shift, max_shift))
    rows = offsets[0] + torch.arange(height, device=padded.device)
    columns = offsets[1] + torch.arange(width, device=padded.device)
    index = torch.arange(batch, device=padded.device)[:, None, None]
    return padded[index, rows[:, :, None], columns[:, None, :]]


def flipped_in_turn(images_BHWC: Tensor, *, epoch: int) -> Tensor:
    """Mirror about half of the images left to right, in the next epoch the others (Jordan 2024, arXiv 2404.00498).

    Whether an image's pixels add up to an odd number decides: it needs no random numbers and no memory of the epochs.
    `images_BHWC` must not be augmented yet.
    """
    chosen = (images_BHWC.sum((1, 2, 3), keepdim=True) + epoch) % 2 == 1
    return torch.where(chosen, images_BHWC.flip(2), images_BHWC)


def flipped(images_BHWC: Tensor, *, generator: torch.Generator) -> Tensor:
    """Mirror each image left to right with probability 1/2; `generator` must be on the CPU."""
    chosen = torch.randint(0, 2, (len(images_BHWC), 1, 1, 1), generator=generator).to(images_BHWC.device)
    return torch.where(chosen.bool(), images_BHWC.flip(2), images_BHWC)
