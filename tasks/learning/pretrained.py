"""Weights that training starts from: what libraries publish, files of weights, and a model that takes them."""

import contextlib
import dataclasses
import re
import sys
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import TYPE_CHECKING

from tasks.learning import models
from tasks.learning.head import head_of, last_layer
from tasks.learning.initial_weights import SUFFIXES

if TYPE_CHECKING:
    from torch import Tensor, nn

    from tasks.learning.modeling import Classifier

_HASH = re.compile(r"-([0-9a-f]{8,64})\.[a-z]+$")
"""Start of a file's SHA-256 in its name, as Torch Hub has it."""
_HUB_FILE = "model.safetensors"
"""Name of timm's files in a repository of the Hugging Face Hub."""
_AUXILIARY = ("aux1.", "aux2.", "AuxLogits.")
"""Parameters of heads that GoogLeNet and Inception need only if they are trained from random weights."""
_TRANSFORMING = ("googlenet", "inception-v3")
"""Models whose published weights torchvision normalises once more, to a mean and deviation of 0.5."""
_DENSE_LAYER = re.compile(r"(denselayer\d+\.(?:norm|relu|conv))\.([12]\.)")
"""Names of parameters in torchvision's files for DenseNets, `norm.1.weight` for `norm1.weight`."""
_COUNTER = ".num_batches_tracked"
"""End of names that files from before 2018 lack."""
_NAMED = 3  # keys in an error, at most


@dataclasses.dataclass(frozen=True, kw_only=True)
class Published:
    """Weights that a library publishes for an architecture, and the images that they are for."""

    url: str
    file: str
    """Name of the file on a mirror."""
    sha256: str
    """Start of the file's SHA-256, from its name; empty if it has none."""
    hub_id: str = ""
    """Repository of the Hugging Face Hub that has the weights too, as `model.safetensors`."""
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
    """Return the default weights of torchvision or timm for `model`; raises `ValueError` if there are none."""
    model = models.canonical(model)
    models.check_known(model)
    if model.startswith(models.TIMM):
        return _published_by_timm(model)
    if not models.is_torchvisions(model):
        raise ValueError(
            f"start=pretrained: no library publishes weights of model {model}; use a torchvision classifier, such as "
            "model=resnet18, one of timm's, or start=FILE"
        )
    from torchvision.models import get_model_weights

    weights = get_model_weights(model.replace("-", "_")).DEFAULT
    images = weights.transforms()
    mean, std = ((0.5,) * 3, (0.5,) * 3) if model in _TRANSFORMING else (images.mean, images.std)
    return _published(weights.url, mean=mean, std=std, image_size=images.crop_size[0])


def _published_by_timm(model: str) -> Published:
    import timm

    config = timm.get_pretrained_cfg(model.removeprefix(models.TIMM))
    if config is None or not (config.url or config.hf_hub_id) or config.custom_load:
        raise ValueError(f"start=pretrained: timm publishes no weights of model {model}; use another, or start=FILE")
    url, hub_id = config.url or "", config.hf_hub_id or ""
    if not url.endswith(SUFFIXES):
        if not hub_id:
            raise ValueError(f"start=pretrained: {url} is not one of {', '.join(SUFFIXES)}; use another model")
        url = f"https://huggingface.co/{hub_id}/resolve/main/{_HUB_FILE}"
    return _published(url, hub_id=hub_id, mean=config.mean, std=config.std, image_size=config.input_size[-1])


def _published(
    url: str, *, hub_id: str = "", mean: Sequence[float], std: Sequence[float], image_size: int
) -> Published:
    file = url.rpartition("/")[2]
    digest = _HASH.search(file)
    return Published(
        url=url,
        file=f"{hub_id.rpartition('/')[2]}.safetensors" if file == _HUB_FILE else file,
        sha256=digest[1] if digest else "",
        hub_id=hub_id,
        mean=tuple(255 * value for value in mean),
        std=tuple(255 * value for value in std),
        image_size=image_size,
    )


def cached(weights: Published) -> Path | None:
    """Return the file of `weights` in the cache of Torch Hub or of the Hugging Face Hub, if another program put it."""
    import torch

    path = Path(torch.hub.get_dir(), "checkpoints", weights.file)
    if path.is_file():
        return path
    if weights.hub_id:
        from huggingface_hub import try_to_load_from_cache  # comes with timm

        in_hub = try_to_load_from_cache(weights.hub_id, _HUB_FILE)
        return Path(in_hub) if isinstance(in_hub, str) else None
    return None


def normalisation(model: str, *, channels: int) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Return mean and deviation per channel that the weights of a library's `model` are for, in units of 0 to 255.

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
    """Return published weights with the names and sizes that the libraries' own code gives them for `backbone`."""
    module = sys.modules[type(backbone).__module__]
    if module.__name__.startswith("timm.") and hasattr(module, "checkpoint_filter_fn"):
        # For weights of another architecture it fails somewhere; the comparison that follows names what differs.
        with contextlib.suppress(KeyError, RuntimeError, AssertionError):
            return dict(module.checkpoint_filter_fn(dict(weights), backbone))
    if module.__name__.startswith("torchvision."):
        from torchvision.models import VisionTransformer
        from torchvision.models.vision_transformer import interpolate_embeddings

        weights = {
            _DENSE_LAYER.sub(r"\1\2", name): tensor
            for name, tensor in weights.items()
            if not name.startswith(_AUXILIARY)
        }
        if isinstance(backbone, VisionTransformer) and "encoder.pos_embedding" in weights:
            named = OrderedDict(weights)
            return dict(interpolate_embeddings(backbone.image_size, backbone.patch_size, named))
    return weights
