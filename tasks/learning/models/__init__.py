"""Models by name: the project's (one module each), torchvision's classifiers, and the user's own; all take BCHW floats.

A module has `build(*, image_shape, num_classes) -> nn.Module`; a factory of the user's own has the same signature, and
may take `pretrained`: whether to read weights from files.
A name has one spelling, that of `canonical`: torchvision's with `-` for `_`, those of timm as `timm/NAME` with `_`.
"""

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from storage.uri import is_name
from tasks.learning import user_code

if TYPE_CHECKING:
    from torch import nn

TIMM = "timm/"
"""Start of the names of timm's models."""
_WITHOUT_AUXILIARY = ("googlenet", "inception-v3")
"""Models that return auxiliary logits in training unless that is switched off."""
_ANY_SIZE = ("swin-", "efficientnet-v2-")
"""Models that take smaller images than torchvision says."""
_MAXVIT = 224
"""Pixels of which the side of MaxViT's images must be a multiple: its windows of 7 x 7 divide five halved sizes."""


def known() -> list[str]:
    """Return the sorted names of the project's models."""
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def canonical(name: str) -> str:
    """Return the one spelling of a model's name, in which `-` and `_` may stand for each other."""
    if user_code.is_reference(name):
        return name
    return name.replace("-", "_") if name.startswith(TIMM) else name.replace("_", "-")


def check_known(name: str) -> None:
    """Raise `ValueError` unless `name` is a model of the project, torchvision or timm, or refers to the user's code."""
    if user_code.is_reference(name):
        if not callable(user_code.resolve(name)):
            raise ValueError(f"model must be a function that returns a torch.nn.Module, got {name!r}")
    elif name.startswith(TIMM):
        if importlib.util.find_spec("timm") is None:
            raise ValueError(f"model {name} needs timm, which is not installed: pip install data-to-model[timm]")
        import timm

        if not timm.is_model(name.removeprefix(TIMM)):
            raise ValueError(f"model must be one that timm.list_models() names, as timm/NAME, got {name!r}")
        try:
            timm.get_pretrained_cfg(name.removeprefix(TIMM))
        except RuntimeError as error:  # a tag of weights, after a dot, that timm does not know
            raise ValueError(f"model must be one that timm.list_pretrained() names, got {name!r}: {error}") from None
    elif name not in known() and not is_torchvisions(name):
        raise ValueError(
            f"model must be one of {', '.join(known())}, or the name of a torchvision classifier such as resnet34 or "
            f"efficientnet-v2-s, or timm/NAME, got {name!r}"
        )


def is_torchvisions(name: str) -> bool:
    """Return whether torchvision has a classifier `name`."""
    if not is_name(name):
        return False
    from torchvision import models  # takes seconds

    return name.replace("-", "_") in models.list_models(module=models)


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
    if not (user_code.is_reference(name) or name in known()):
        return _torchvisions(name, image_shape=image_shape, num_classes=num_classes)
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


def _torchvisions(name: str, *, image_shape: Sequence[int], num_classes: int) -> "nn.Module":
    from torchvision.models import get_model, get_model_weights

    height, width, channels = image_shape
    library_name, options = name.replace("-", "_"), dict[str, Any](num_classes=num_classes)
    divisor, smallest = 1, 1
    if name in _WITHOUT_AUXILIARY:
        options |= {"aux_logits": False, "init_weights": True}
    if name.startswith("vit-"):
        options["image_size"], divisor = height, int(name.rpartition("-")[2])
    elif name.startswith("maxvit-"):
        options["input_size"], divisor = (height, width), _MAXVIT
    elif not name.startswith(_ANY_SIZE):
        smallest = max(get_model_weights(library_name).DEFAULT.meta["min_size"])
    if divisor > 1 and (height != width or height % divisor):
        raise ValueError(
            f"model {name} requires square images with a side that is a multiple of {divisor}, got {height} x {width}; "
            f"the smallest is --set image_size={divisor}"
        )
    if min(height, width) < smallest:
        raise ValueError(
            f"model {name} requires images of at least {smallest} x {smallest} pixels, got {height} x {width}; use "
            f"--set image_size={smallest}"
        )
    return with_channels(get_model(library_name, weights=None, **options), channels)


def _timms(name: str, *, image_shape: Sequence[int], num_classes: int) -> "nn.Module":
    import timm

    height, width, channels = image_shape
    config = timm.get_pretrained_cfg(name.removeprefix(TIMM))
    options: dict[str, Any] = {"img_size": (height, width)} if config and config.fixed_input_size else {}
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
