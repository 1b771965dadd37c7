"""Augmentation in a recipe: random changes of training images, never of validation and test images."""

from typing import Annotated, Literal

from pydantic import Field

from tasks.learning.field_errors import group

_Share = Annotated[float, Field(ge=0, le=1)]


@group
class _Augment:
    max_shift: int = Field(default=2, ge=0)
    """Each image moves by up to this many pixels."""
    flip: Literal["none", "horizontal"] = "none"
    """horizontal: each image is mirrored left to right with probability 1/2."""
    policy: Literal["none", "trivial"] = "none"
    """trivial: one random change of each image, of random strength (torchvision's TrivialAugmentWide)."""
    erasing: _Share = 0.0
    """Share of the images in which a random rectangle becomes black (torchvision's RandomErasing)."""
    mixup: float = Field(default=0.0, ge=0)
    """Alpha of MixUp: each image is blended with another of its batch, and so are their labels; 0: off."""
    cutmix: float = Field(default=0.0, ge=0)
    """Alpha of CutMix: a rectangle of each image comes from another of its batch, with its share of the label; 0: off.
    With `mixup`, each batch gets one of the two."""


@group
class PixelAugment(_Augment):
    """Random changes of training images that are stored as pixels."""

    kind: Literal["pixels"] = "pixels"


@group
class FileAugment(_Augment):
    """Random changes of training images that are stored as files."""

    kind: Literal["files"] = "files"
    crop_scale: float = Field(default=1.0, gt=0, le=1)
    """With store=files: smallest share of an image's area that a random crop keeps; 1: no crop."""
    color_jitter: _Share = 0.0
    """With store=files: largest random change of brightness, contrast and saturation, as a share."""
