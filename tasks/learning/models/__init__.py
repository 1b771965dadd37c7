"""Models by name: one module each, with `build(*, channels, num_classes) -> nn.Module` taking BCHW floats."""

import importlib
import pkgutil
from typing import TYPE_CHECKING

from storage.uri import check_name

if TYPE_CHECKING:
    from torch import nn


def known() -> list[str]:
    """Names of the models there are, sorted."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def check_known(name: str) -> None:
    """Raise `ValueError` with the known names unless `name` is one of them."""
    if name not in known():
        raise ValueError(f"model must be one of {', '.join(known())}, got {name!r}")
    check_name(name, field="model")


def build(name: str, *, channels: int, num_classes: int) -> "nn.Module":
    """A freshly initialised model from images (BCHW, float) to logits (B, `num_classes`)."""
    check_known(name)
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    model: nn.Module = module.build(channels=channels, num_classes=num_classes)
    return model
