"""Models by name: our own, one module each, torchvision's classifiers, and a person's own; all take BCHW floats.

A module has `build(*, image_shape, num_classes) -> nn.Module`; a factory of a person's own is such a function. A name
of torchvision's is written with `-` for `_`.
"""

import importlib
import pkgutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from storage.uri import is_name
from tasks.learning import code

if TYPE_CHECKING:
    from torch import nn

_WITHOUT_AUXILIARY = ("googlenet", "inception-v3")
"""These give more than logits in training unless they are told not to."""


def known() -> list[str]:
    """Names of our own models, sorted."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def check_known(name: str) -> None:
    """Raise `ValueError` with the known names unless `name` is one of ours, of torchvision's or of a person's own."""
    if code.is_reference(name):
        if not callable(code.resolve(name)):
            raise ValueError(f"model must be a function that returns a torch.nn.Module, got {name!r}")
        return
    if name not in known() and not (is_name(name) and name in _torchvision()):
        raise ValueError(
            f"model must be one of {', '.join(known())}, or a classifier of torchvision's such as resnet34 or"
            f" efficientnet-v2-s, got {name!r}"
        )


def build(name: str, *, image_shape: Sequence[int], num_classes: int) -> "nn.Module":
    """A freshly initialised model from images (BCHW, float; `image_shape` is HWC) to logits (B, `num_classes`)."""
    check_known(name)
    if code.is_reference(name):
        return _own(name, image_shape=image_shape, num_classes=num_classes)
    if name in known():
        module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
        model: nn.Module = module.build(image_shape=image_shape, num_classes=num_classes)
        return model
    from torchvision.models import get_model

    options: dict[str, Any] = {"num_classes": num_classes}
    if name in _WITHOUT_AUXILIARY:
        options |= {"aux_logits": False, "init_weights": True}
    if name.startswith("vit-"):
        options |= {"image_size": image_shape[0]}
    return with_channels(get_model(name.replace("-", "_"), weights=None, **options), image_shape[2])


def _own(name: str, **given: Any) -> "nn.Module":
    from torch import nn

    model = code.resolve(name)(**given)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model {name} must return a torch.nn.Module, got {type(model).__name__}")
    return model


def with_channels(model: "nn.Module", channels: int) -> "nn.Module":
    """`model` with a first convolution that takes `channels`; where it did not, with weights drawn anew."""
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


def _torchvision() -> list[str]:
    """Names of torchvision's classifiers; importing it takes seconds, which only who asks for one of them waits."""
    from torchvision import models

    return [name.replace("_", "-") for name in models.list_models(module=models)]
