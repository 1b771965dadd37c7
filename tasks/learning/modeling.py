"""A classifier of raw images that normalizes them itself: its backbone and the head, which gives the logits."""

import contextlib
import functools
import math

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from storage.statistics import ModelSpec
from tasks.learning import models

SHRINKING = 50
"""Validation rows from which half of the temperature's logarithm remains (docs/internals/measurements.md has why)."""
_HIGHEST = 10.0
"""The temperature is at most this, and at least its inverse."""
_HALVINGS = 24
"""Of the logarithm's interval, which becomes shorter than 1e-6."""


class Classifier(nn.Module):
    """Module from raw images (uint8, BHWC) to logits (float, (B, classes)), with its own normalization.

    With `pretrained`, the user's own code may read weights from files: no checkpoint's weights follow.
    """

    def __init__(self, spec: ModelSpec, *, pretrained: bool = False) -> None:
        super().__init__()
        self.spec = spec
        build = functools.partial(
            models.build, spec.model, image_shape=spec.image_shape, num_classes=len(spec.classes), pretrained=pretrained
        )
        self.backbone = build()
        self.probe = None if spec.fine_tuned_temperature is None else build()
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(spec.mean, dtype=torch.float32).view(1, -1, 1, 1))
        self.register_buffer("std", torch.tensor(spec.std, dtype=torch.float32).view(1, -1, 1, 1))

    def forward(self, images_BHWC: Tensor) -> Tensor:
        """Return the logits; of two backbones, the logarithms of their averaged probabilities."""
        images_BCHW = self.normalized(images_BHWC)
        logits = self._checked(self.backbone(images_BCHW), images_BHWC)
        if self.probe is None or self.spec.fine_tuned_temperature is None:
            return logits
        return averaged(logits.float() / self.spec.fine_tuned_temperature, self.probe(images_BCHW).float())

    def _checked(self, logits: object, images_BHWC: Tensor) -> Tensor:
        wanted = (images_BHWC.shape[0], len(self.spec.classes))  # `len` would fix the size of a batch for torch.export
        if not isinstance(logits, Tensor) or logits.shape != wanted or not logits.is_floating_point():
            got = f"{logits.dtype} of {tuple(logits.shape)}" if isinstance(logits, Tensor) else type(logits).__name__
            raise TypeError(
                f"model {self.spec.model} must return logits: a float tensor of shape {wanted} (images, classes), "
                f"got {got}"
            )
        return logits

    def probabilities(self, logits: Tensor) -> Tensor:
        """Return the probabilities (float32, (B, classes)) of `logits`."""
        return (logits.float() / self.spec.temperature).softmax(1)

    def normalized(self, images_BHWC: Tensor) -> Tensor:
        """Return the images as the backbone takes them: floats, BCHW."""
        images_BCHW = images_BHWC.permute(0, 3, 1, 2).to(torch.float32)
        return (images_BCHW - self.mean) / self.std


def averaged(*logits_NK: Tensor) -> Tensor:
    """Return the logarithms of the averaged probabilities of two models."""
    return torch.logaddexp(*(one.log_softmax(1) for one in logits_NK)) - math.log(2)


def resolve_precision(asked: str, device: torch.device, model: nn.Module) -> str:
    """Return `fp32` or `bf16` as `asked`; for `auto`, bf16 if the hardware of `device` has it.

    Depthwise convolutions are slower in bf16 on CPUs: there `auto` is fp32 for a `model` that has any.

    Raises `ValueError` if bf16 is asked for on a GPU that would emulate it, slower than fp32.
    """
    if device.type == "cuda":
        has_bf16 = torch.cuda.is_bf16_supported(including_emulation=False)
        if asked == "bf16" and not has_bf16:
            name = torch.cuda.get_device_name(device)
            raise ValueError(f"precision must be fp32 or auto on {name}, which has no bf16, got 'bf16'")
    else:
        has_bf16 = bool(torch.cpu.get_capabilities().get("avx512_bf16")) and not _has_depthwise(model)
    if asked == "auto":
        return "bf16" if has_bf16 else "fp32"
    return asked


def set_arithmetic(precision: str, device: torch.device) -> None:
    """Let this process compute fp32 on a GPU by algorithms that always give the same bits; bf16 also in TF32, faster.

    `hardware.here` records it.
    """
    if device.type == "cuda":
        is_fast = precision == "bf16"
        torch.set_float32_matmul_precision("high" if is_fast else "highest")
        torch.backends.cudnn.allow_tf32 = is_fast  # torch's default is True
        torch.backends.cudnn.benchmark = is_fast
        torch.backends.cudnn.deterministic = not is_fast


def autocast(precision: str, device: torch.device) -> contextlib.AbstractContextManager[object]:
    return torch.autocast(device.type, dtype=torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()


def move_model(model: Classifier, *, precision: str, device: torch.device) -> Classifier:
    """Move `model` to `device`, in the memory format that is fastest at `precision`.

    That is channels last in bf16, and in fp32 on a CPU for depthwise convolutions.
    """
    is_last = precision == "bf16" or (device.type == "cpu" and _has_depthwise(model))
    for backbone in filter(None, (model.backbone, model.probe)):
        backbone.to(memory_format=torch.channels_last if is_last else torch.contiguous_format)
    return model.to(device)


def _has_depthwise(model: nn.Module) -> bool:
    layers = (layer for layer in model.modules() if isinstance(layer, nn.Conv2d))
    return any(layer.groups == layer.in_channels > 1 for layer in layers)


def count_flops(model: Classifier) -> int:
    """Return the arithmetic of a forward pass of one row; leaves `model` in evaluation."""
    image = torch.zeros(1, *model.spec.image_shape, dtype=torch.uint8, device=model.mean.device)
    with FlopCounterMode(display=False) as counter:  # with gradients: else attention may be one operation, not counted
        model.eval()(image)
    return int(counter.get_total_flops())


def head_of(backbone: nn.Module) -> str:
    """Return the name of the submodule of `backbone` that turns features into logits.

    A model of the user's own says it by an attribute `head`: the name, or the submodule itself.

    Raises `ValueError` naming the model's class if it does not, or if that submodule has no weights.
    """
    kind, library = type(backbone).__name__, type(backbone).__module__.partition(".")[0]
    head: object = getattr(backbone, "head", None)
    if isinstance(head, nn.Module):
        head = "head"
    if library == "timm":
        head = backbone.default_cfg["classifier"]  # type: ignore[index]
        if isinstance(head, tuple):  # distilled ones, for example
            raise ValueError(f"model {kind} has several heads, {', '.join(head)}; choose one with a single head")
    elif library == "torchvision" and not isinstance(head, str):
        layer = last_layer(backbone)
        head = next(name for name, module in backbone.named_modules() if module is layer)
    if not isinstance(head, str):
        raise ValueError(
            f"model {kind} does not say where its one head is; give it an attribute `head`, the name of the submodule "
            'that gives the logits, such as model.head = "fc"'
        )
    if not any(name.startswith(f"{head}.") for name, _ in backbone.named_parameters()):
        raise ValueError(f"model {kind} has no weights below {head!r}, which its attribute `head` names")
    return head


def last_layer(model: nn.Module) -> nn.Linear | nn.Conv2d | None:
    """Return the last linear or convolutional layer of `model`, if it has any."""
    layers = [layer for layer in model.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    return layers[-1] if layers else None


def head_layer(backbone: nn.Module) -> nn.Module:
    """Return the layer that the head of `backbone` ends in."""
    return list(backbone.get_submodule(head_of(backbone)).modules())[-1]


def linear_head(model: Classifier) -> nn.Linear:
    """Return the linear layer that a head ends in; raise `ValueError` if it ends in none, as a probe's must."""
    head, layer = head_of(model.backbone), head_layer(model.backbone)
    if not isinstance(layer, nn.Linear) or layer.bias is None:
        raise ValueError(
            f"embeddings: the head {head!r} of model {model.spec.model} must end in a linear layer with a bias; use "
            "another model, or --set training.kind=finetune with --set ensemble=none, which needs none"
        )
    return layer


def detach_last_layer(model: Classifier) -> None:
    """Make the backbone of `model` return what the last layer of its head was given, (N, dimensions)."""
    layer = head_layer(model.backbone)
    if not isinstance(layer, nn.Conv2d):
        layer = linear_head(model)
    name = next(name for name, module in model.backbone.named_modules() if module is layer)
    model.backbone.set_submodule(name, nn.Identity())


def weights_of_backbone(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights of `model` outside of its head, in its order; raises `ValueError` as `head_of` does."""
    head = head_of(model)
    return [weight for name, weight in model.named_parameters() if not name.startswith(f"{head}.")]


def norms_of_backbone(model: nn.Module) -> list[nn.Module]:
    """Return the modules of `model` outside of its head that keep running statistics, as batch normalization does."""
    head = head_of(model)
    modules = [module for name, module in model.named_modules() if not f"{name}.".startswith(f"{head}.")]
    return [module for module in modules if getattr(module, "track_running_stats", False)]


@torch.inference_mode()
def fit_temperature(logits_NK: Tensor, labels_N: Tensor, *, usual: float = 1.0) -> Tensor:
    """Find the temperature with the lowest cross-entropy of the rows of all ranks; each rank must call this.

    Logits are divided by it, so that probabilities are as high as the model is right. One row more is counted whose
    label is every class alike, as in Platt's scaling. The fewer rows there are, the nearer to `usual` it is. The
    slope is monotonic in the inverse temperature; bisection finds its zero.

    Args:
        logits_NK: float32; a rank may have no rows.
        labels_N: int64.
        usual: The result without rows.

    Returns:
        A scalar (float64) on the device, for which the host does not wait.
    """
    logits = logits_NK.double()
    num_rows = _summed(logits.new_full((), len(logits)))
    spread = 1 / (num_rows + 2)
    at_labels = logits.gather(1, labels_N[:, None])[:, 0]
    expected = (1 - spread) * at_labels + spread * logits.mean(1)
    low, high = (logits.new_full((), sign * math.log(_HIGHEST)) for sign in (-1, 1))  # of the inverse's logarithm
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        predicted = ((logits * middle.exp()).softmax(1) * logits).sum(1)
        is_too_high = _summed((predicted - expected).sum()) > 0
        low, high = torch.where(is_too_high, low, middle), torch.where(is_too_high, middle, high)
    return ((-(low + high) / 2 * num_rows + math.log(usual) * SHRINKING) / (num_rows + SHRINKING)).exp()


def _summed(value: Tensor) -> Tensor:
    if dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(value)
    return value
