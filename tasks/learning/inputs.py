"""Inputs of a model: arrays of its own shape are used as they are, pictures of any size are resized as in training."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tasks.learning import decode

Picture = Image.Image | np.ndarray | str | os.PathLike[str] | bytes
"""An open image, pixels (uint8, (height, width) or (height, width, 1 to 4)), a file's path, or a file's bytes."""
Images = Tensor | np.ndarray | Image.Image | Sequence[Picture]


def as_batch(images: Images, *, image_shape: Sequence[int], device: torch.device) -> Tensor:
    """Convert `images` to the form a model takes: uint8, (N, height, width, channels).

    Tensors and arrays must have this form and are not resized; raises `ValueError` naming the expected and the given
    one. A picture or a list of pictures goes through `prepare`.
    """
    if isinstance(images, Image.Image | list | tuple):
        images = prepare(images, image_shape=image_shape)
    if not isinstance(images, Tensor | np.ndarray):
        raise ValueError(
            f"images must be a tensor, a NumPy array or PIL images, got {type(images).__name__}; "
            "model.prepare([...]) reads them from paths"
        )
    dtype = str(images.dtype).removeprefix("torch.")
    if dtype != "uint8" or images.ndim != 4 or tuple(images.shape[1:]) != tuple(image_shape):
        wanted, found = ", ".join(map(str, image_shape)), ", ".join(map(str, images.shape))
        raise ValueError(
            f"images must be uint8 of shape (N, {wanted}), got {dtype} of shape ({found}); model.prepare([...]) "
            "converts pictures of any size"
        )
    if isinstance(images, np.ndarray):
        return torch.from_numpy(np.require(images, requirements=["C", "W"])).to(device)
    return images


def prepare(pictures: Picture | Iterable[Picture], *, image_shape: Sequence[int]) -> np.ndarray:
    """Resize pictures exactly as ingestion resizes the user's own images, for training and for prediction.

    Each picture is rotated by its EXIF, put on white where it is transparent, scaled until its shorter side fits, and
    cropped to its centre. Paths and bytes give exactly the pixels of training. So do open images, except large JPEGs,
    which training decodes at a smaller scale.

    Returns:
        uint8, (N, height, width, channels).

    Raises:
        ValueError: A picture cannot be read; the message names it and the reason.
    """
    height, width, channels = image_shape
    if height != width:
        raise ValueError(
            f"the model expects images of {height} x {width} pixels; pictures can only be resized to squares"
        )
    some = [pictures] if isinstance(pictures, Image.Image | np.ndarray | str | os.PathLike | bytes) else list(pictures)
    if not some:
        return np.empty((0, *image_shape), np.uint8)
    pixels = [_pixels(picture, number, size=height, channels=channels) for number, picture in enumerate(some)]
    return np.frombuffer(bytearray(b"".join(pixels)), np.uint8).reshape(len(some), *image_shape)


def _pixels(picture: Picture, number: int, *, size: int, channels: int) -> bytes:
    name = str(picture) if isinstance(picture, str | os.PathLike) else f"picture {number}"
    try:
        if isinstance(picture, Image.Image):
            return decode.fitted(picture, size, channels).pixels
        if isinstance(picture, np.ndarray):
            return decode.scaled(_with_channels(picture), size, channels).pixels
        content = picture if isinstance(picture, bytes) else Path(picture).expanduser().read_bytes()
        return decode.decoded(content, size, channels).pixels
    except decode.Unreadable as error:
        raise ValueError(f"{name} cannot be used: {error}") from None


def _with_channels(pixels: np.ndarray) -> np.ndarray:
    found = pixels[:, :, None] if pixels.ndim == 2 else pixels
    if pixels.dtype != np.uint8 or found.ndim != 3 or not 1 <= found.shape[2] <= 4 or 0 in found.shape:
        raise decode.Unreadable(
            f"pixels must be uint8 of shape (height, width) or (height, width, 1 to 4), got {pixels.dtype} of shape "
            f"{pixels.shape}"
        )
    return np.ascontiguousarray(found)
