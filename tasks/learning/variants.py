"""Variants of a recipe's fields: initial weights, optimizers and augmentation; and what all groups of fields share."""

import dataclasses
import functools
import os
from collections.abc import Mapping
from typing import Annotated, Literal, TypeVar, dataclass_transform

import pydantic
from pydantic import ConfigDict, Field, ValidationError

from storage.uri import URI, check_name
from tasks.learning import user_code

_Class = TypeVar("_Class", bound=type)
Fraction = Annotated[float, Field(gt=0, lt=1)]
Share = Annotated[float, Field(ge=0, le=1)]
SUFFIX = ".safetensors"
"""End of the names of files with weights."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(Field, dataclasses.field))
def group(cls: _Class) -> _Class:
    """Make a class a group of a recipe's fields: frozen, strictly typed, with a `ValueError` of one line."""
    config = ConfigDict(strict=True, allow_inf_nan=False, extra="forbid", use_attribute_docstrings=True)
    checked = pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=config)(cls)
    check = checked.__init__

    @functools.wraps(check)
    def init(self: object, **fields: object) -> None:
        try:
            check(self, **fields)
        except ValidationError as error:
            raise ValueError(first_problem(error)) from None

    checked.__init__ = init  # type: ignore[method-assign]
    return checked  # type: ignore[return-value]


def first_problem(error: ValidationError) -> str:
    """Return one line about the first wrong field: its name without groups, what is allowed and the value."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "value_error":
        return str(first["ctx"]["error"])
    field, message = first["loc"][-1], first["msg"]
    if not message.startswith("Input should"):
        return f"{field}: {message}"
    return f"{field} {message.replace('Input should', 'must')}, got {first['input']!r}"


@group
class Random:
    """Random initial weights."""

    kind: Literal["random"] = "random"


@group
class Pretrained:
    """Initial weights that timm publishes for the model; the head is new."""

    kind: Literal["pretrained"] = "pretrained"


@group
class Weights:
    """Initial weights from the user's file."""

    kind: Literal["file"] = "file"
    file: str
    """`.safetensors`: a path, relative to the working directory, or a URI."""

    def __post_init__(self) -> None:
        if not self.file.endswith(SUFFIX):
            raise ValueError(f"start: a file of weights must end in {SUFFIX}, got {self.file!r}")
        is_path = "://" not in self.file  # absolute: jobs and deployments run in other folders
        place = os.path.abspath(os.path.expanduser(self.file)) if is_path else self.file
        try:
            object.__setattr__(self, "file", str(URI(place)))
        except ValueError as error:
            raise ValueError(f"start: {error}") from None


@group
class Champion:
    """Initial weights of the current champion of a registered model."""

    kind: Literal["champion"] = "champion"
    registered_model: str = ""
    """Empty: the one that the run competes for."""

    def __post_init__(self) -> None:
        if self.registered_model:
            check_name(self.registered_model, field="start=champion:NAME")


Start = Annotated[Random | Pretrained | Weights | Champion, Field(discriminator="kind")]


def start_from_text(text: str) -> dict[str, str]:
    """Return the fields of the start that `text` spells, as `to_dict` gives them; `start_to_text` is the inverse."""
    kind, separator, name = text.partition(":")
    if text in ("random", "pretrained"):
        return {"kind": text}
    if kind == "champion" and bool(separator) == bool(name):
        return {"kind": kind, "registered_model": name}
    if text.endswith(SUFFIX):
        return {"kind": "file", "file": text}
    hint = "; save a state_dict by safetensors.torch.save_file" if text.endswith((".pth", ".pt", ".bin")) else ""
    raise ValueError(
        f"start must be random, pretrained, champion, champion:NAME or a {SUFFIX} file, got {text!r}{hint}"
    )


def start_to_text(start: Mapping[str, str]) -> str:
    """Spell a start as `--set start=...` takes it."""
    name = start.get("registered_model")
    return str(start.get("file") or (f"champion:{name}" if name else start["kind"]))


@group
class _Scheduled:
    """Optimizer whose learning rate rises to its peak and falls to almost 0 by the end of all epochs."""

    learning_rate: float = Field(default=2e-3, gt=0)
    """Peak of the schedule, a cosine from 1/25 of the peak up to it, then down to almost 0."""
    weight_decay: float = Field(default=1e-2, ge=0)
    """Decay of the weights: decoupled, times the learning rate (AdamW), or added to the gradient (SGD)."""
    schedule: Literal["one-cycle", "warmup-constant-decay"] = "one-cycle"
    """one-cycle: by cosines from 1/25 of the peak up to it, then down; warmup-constant-decay: up in the first epoch,
    constant, then down, so that a training with more `epochs` continues a finished one."""
    warmup_fraction: Fraction = 0.25
    """With schedule=one-cycle: share of all steps during which the learning rate rises to its peak."""
    decay_fraction: Fraction = 0.3
    """With schedule=warmup-constant-decay: share of all epochs, rounded, at least one epoch, in which the learning rate
    falls."""

    def __post_init__(self) -> None:
        name, usual, needed = "decay_fraction", 0.3, "warmup-constant-decay"
        if self.schedule == needed:
            name, usual, needed = "warmup_fraction", 0.25, "one-cycle"
        if (value := getattr(self, name)) != usual:
            raise ValueError(
                f"{name} needs schedule={needed}, got {value} with schedule={self.schedule}; add --set "
                f"schedule={needed} or --set {name}={usual}"
            )


@group
class AdamW(_Scheduled):
    """AdamW."""

    kind: Literal["adamw"] = "adamw"


@group
class SGD(_Scheduled):
    """SGD with Nesterov's momentum."""

    kind: Literal["sgd"] = "sgd"
    momentum: float = Field(default=0.9, ge=0, lt=1)
    """Share of the last update in the next one, with optimizer=sgd."""


@group
class Own:
    """The user's optimizer: `factory(model, total_steps=...)` returns the optimizer and its learning-rate schedule."""

    kind: Literal["own"] = "own"
    factory: str
    """`own(function)`."""

    def __post_init__(self) -> None:
        if not user_code.is_reference(self.factory) or not callable(user_code.resolve(self.factory)):
            raise ValueError(f"factory must be own(function), got {self.factory!r}")


Optimizer = Annotated[AdamW | SGD | Own, Field(discriminator="kind")]


@group
class _Augment:
    max_shift: int = Field(default=2, ge=0)
    """In training, each image moves by up to this many pixels."""
    flip: Literal["none", "horizontal"] = "none"
    """horizontal: mirror each training image left to right with probability 1/2."""
    policy: Literal["none", "trivial"] = "none"
    """trivial: one random change of each image, of random strength (torchvision's TrivialAugmentWide)."""
    erasing: Share = 0.0
    """Share of the images in which a random rectangle becomes black (torchvision's RandomErasing)."""
    mixup: float = Field(default=0.0, ge=0)
    """Alpha of MixUp: blend each image, and its label, with another of its batch; usual: 0.2; 0: off."""
    cutmix: float = Field(default=0.0, ge=0)
    """Alpha of CutMix: a rectangle of each image comes from another of its batch, with its share of the label; usual:
    1; 0: off. With `mixup`, each batch gets one of the two."""


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
    color_jitter: Share = 0.0
    """With store=files: largest random change of brightness, contrast and saturation, as a share."""


Augment = Annotated[PixelAugment | FileAugment, Field(discriminator="kind")]
