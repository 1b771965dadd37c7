"""Models by name: the project's (one module each), those of timm, and the user's own; all take BCHW floats.

A module has `build(*, image_shape, num_classes) -> nn.Module`; a factory of the user's own has the same signature, and
may take `pretrained`: whether to read weights from files.
A name has one spelling, that of `canonical`: ours with `-` for `_`, those of timm as `timm/NAME` with `_`.
"""

import importlib
import inspect
import pkgutil
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from tasks.learning import user_code

if TYPE_CHECKING:
    from torch import nn

TIMM = "timm/"
"""Start of the names of timm's models."""


def known() -> list[str]:
    """Return the sorted names of the project's models."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def canonical(name: str) -> str:
    """Return the one spelling of a model's name, in which `-` and `_` may stand for each other."""
    if user_code.is_reference(name):
        return name
    return name.replace("-", "_") if name.startswith(TIMM) else name.replace("_", "-")


def check_known(name: str) -> None:
    """Raise `ValueError` unless `name` is a model of the project or of timm, or refers to the user's code."""
    if user_code.is_reference(name):
        if not callable(user_code.resolve(name)):
            raise ValueError(f"model must be a function that returns a torch.nn.Module, got {name!r}")
    elif name.startswith(TIMM):
        import timm  # takes seconds

        if not timm.is_model(name.removeprefix(TIMM)):
            raise ValueError(f"model must be one that timm.list_models() names, as timm/NAME, got {name!r}")
        try:
            timm.get_pretrained_cfg(name.removeprefix(TIMM))
        except RuntimeError as error:  # a tag of weights, after a dot, that timm does not know
            raise ValueError(f"model must be one that timm.list_pretrained() names, got {name!r}: {error}") from None
    elif name not in known():
        raise ValueError(f"model must be one of {', '.join(known())}, or timm/NAME such as timm/resnet34, got {name!r}")


def in_names(model: str) -> str:
    """Return `model` as it may be part of the name of a result: `timm/resnet18.a1_in1k` as `timm-resnet18-a1-in1k`."""
    return re.sub("[^a-z0-9]+", "-", model.partition("@")[0].lower()).strip("-")


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

    if name.startswith(TIMM):
        return _timms(name, image_shape=image_shape, num_classes=num_classes)
    if user_code.is_reference(name):
        factory = user_code.resolve(name)
    else:
        factory = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").build
    takes_it = user_code.PRETRAINED in inspect.signature(factory).parameters
    options = {user_code.PRETRAINED: pretrained} if takes_it else {}
    model = factory(image_shape=image_shape, num_classes=num_classes, **options)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model {name} must return a torch.nn.Module, got {type(model).__name__}")
    return model


def _timms(name: str, *, image_shape: Sequence[int], num_classes: int) -> "nn.Module":
    import timm

    height, width, channels = image_shape
    config = timm.get_pretrained_cfg(name.removeprefix(TIMM))
    options = {"img_size": (height, width)} if config and config.fixed_input_size else {}
    model: nn.Module = timm.create_model(
        name.removeprefix(TIMM), pretrained=False, num_classes=num_classes, in_chans=channels, **options
    )
    return model


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
