"""Augmentation: random changes of training images, drawn from a generator on the CPU, applied on their device."""

from collections.abc import Iterator

import torch
from torch import Tensor, nn

_DRAWN_AT_ONCE = 2**20
"""Most random numbers that are drawn, and copied to the device, at once."""


def drawn(
    steps: int, batch_size: int, *, max_shift: int, mirrors: bool, generator: torch.Generator, device: torch.device
) -> Iterator[Tensor]:
    """Yield the random numbers of each step, on `device`; they are the same on every device, however many at once.

    The numbers of many steps are drawn together: on a GPU this takes one asynchronous copy instead of two copies per
    step, for which the host would wait.

    Args:
        steps: Number of steps of the epoch.
        batch_size: Rows of each.
        max_shift: As for `shifted`; with 0 no shifts are drawn.
        mirrors: Whether to draw which images `flipped` mirrors.
        generator: Generator on the CPU.
        device: Device of the images.

    Yields:
        int64, (numbers per row, batch_size): those for `shifted`, two, then the one for `flipped`.
    """
    numbers_per_row = 2 * bool(max_shift) + mirrors
    at_once = max(1, _DRAWN_AT_ONCE // (batch_size * max(1, numbers_per_row)))
    for start in range(0, steps, at_once):
        here = torch.empty(
            min(at_once, steps - start), numbers_per_row, batch_size, dtype=torch.int64, pin_memory=_is_gpu(device)
        )
        for numbers in here:
            if max_shift:
                numbers[:2] = torch.randint(0, 2 * max_shift + 1, (2, batch_size), generator=generator)
            if mirrors:
                numbers[-1] = torch.randint(0, 2, (batch_size,), generator=generator)
        yield from here.to(device, non_blocking=True)


def shifted(images_BHWC: Tensor, offsets_2B: Tensor, *, max_shift: int) -> Tensor:
    """Shift each image by its own number of whole pixels, up to `max_shift` each way; fill with black.

    Args:
        images_BHWC: uint8.
        offsets_2B: int64, from 0 to 2 * max_shift: offset down and right, plus `max_shift`.
        max_shift: Largest shift in pixels; 0: the images stay as they are.
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


def _is_gpu(device: torch.device) -> bool:
    return device.type == "cuda"
