"""Models by name: the project's (one module each), torchvision's classifiers, and the user's own; all take BCHW floats.

A module has `build(*, image_shape, num_classes) -> nn.Module`; a factory of the user's own has the same signature, and
may take `pretrained`: whether to read weights from files.
Names from torchvision are written with `-` for `_`.
"""

import importlib
import inspect
import pkgutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from storage.uri import is_name
from tasks.learning import user_code

if TYPE_CHECKING:
    from torch import nn

_WITHOUT_AUXILIARY = ("googlenet", "inception-v3")
"""Models that return auxiliary logits in training unless that is switched off."""


def known() -> list[str]:
    """Return the sorted names of the project's models."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def check_known(name: str) -> None:
    """Raise `ValueError` unless `name` is a model of the project or of torchvision, or refers to the user's code."""
    if user_code.is_reference(name):
        if not callable(user_code.resolve(name)):
            raise ValueError(f"model must be a function that returns a torch.nn.Module, got {name!r}")
        return
    if name not in known() and not (is_name(name) and name in _torchvision_classifiers()):
        raise ValueError(
            f"model must be one of {', '.join(known())}, or the name of a torchvision classifier such as resnet34 or "
            f"efficientnet-v2-s, got {name!r}"
        )


def build(name: str, *, image_shape: Sequence[int], num_classes: int, pretrained: bool = False) -> "nn.Module":
    """Build a newly initialised model from images to logits.

    Args:
        name: As in `check_known`.
        image_shape: Height, width, channels; the model takes floats, BCHW.
        num_classes: The logits are (B, `num_classes`).
        pretrained: Let a factory of the user's own read weights from files; a checkpoint's weights need none.
    """
    check_known(name)
    from torch import nn

    if user_code.is_reference(name) or name in known():
        if user_code.is_reference(name):
            factory = user_code.resolve(name)
        else:
            factory = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").build
        takes_it = user_code.PRETRAINED in inspect.signature(factory).parameters
        options: dict[str, Any] = {user_code.PRETRAINED: pretrained} if takes_it else {}
        model = factory(image_shape=image_shape, num_classes=num_classes, **options)
        if not isinstance(model, nn.Module):
            raise TypeError(f"model {name} must return a torch.nn.Module, got {type(model).__name__}")
        return model
    from torchvision.models import get_model

    options = {"num_classes": num_classes}
    if name in _WITHOUT_AUXILIARY:
        options |= {"aux_logits": False, "init_weights": True}
    if name.startswith("vit-"):
        options |= {"image_size": image_shape[0]}
    return with_channels(get_model(name.replace("-", "_"), weights=None, **options), image_shape[2])


def with_channels(model: "nn.Module", channels: int) -> "nn.Module":
    """Make the first convolution of `model` take `channels`; if it did not, replace it with random weights."""
    from torch import nn

    name, first = next((name, module) for name, module in model.named_modules() if isinstance(module, nn.Conv2d))
    if first.in_channels == channels:
        return model
    taken = nn.Conv2d(
        channels,
        first.out_channels,
        kernel_size=first.kernel_size,  # type: ignore[arg-type]
        stride=first.stride,  # type: ignore[arg-type]
        padding=first.padding,  # type: ignore[arg-type]
        dilation=first.dilation,  # type: ignore[arg-type]
        bias=first.bias is not None,
    )
    nn.init.kaiming_normal_(taken.weight, mode="fan_out", nonlinearity="relu")
    parent, _, attribute = name.rpartition(".")
    setattr(model.get_submodule(parent), attribute, taken)
    return model


def _torchvision_classifiers() -> list[str]:
    from torchvision import models  # takes seconds

    return [name.replace("_", "-") for name in models.list_models(module=models)]
