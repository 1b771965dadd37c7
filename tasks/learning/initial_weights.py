"""Where the weights of a model start: a variant of the recipe's field `start`, and how a setting spells it."""

import os
from collections.abc import Mapping
from typing import Literal

from storage.uri import URI, check_name
from tasks.learning.field_errors import group

SUFFIX = ".safetensors"
"""End of the names of files with weights."""


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
