"""CIFAR-10 after Keller Jordan's airbench94 (arXiv 2404.00498): a network, an optimizer and an augmentation of its own.

$ python flows/pipeline.py --recipe examples/cifar10_airbench.py:cifar10_airbench

Sizes and constants are those of github.com/KellerJordan/cifar10-airbench, `legacy/airbench94.py`. Differences: no
Lookahead, the bias of the first layer is trained to the end, and bf16 instead of fp16. 24 epochs instead of 9.9 are
meant to compensate for these, and for the validation rows.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, pad
from torch.optim.lr_scheduler import LambdaLR

from tasks.learning.recipes import Data, Gate, Own, PixelAugment, Recipe, Resources, Training, own

_EPOCHS = 24
_WIDTHS = (64, 256, 256)
_WHITENED = 2  # pixels per side of the patches that the first layer whitens
_WHITENING_EPS = 5e-4
_LOGIT_SCALE = 1 / 9
_SMALLEST = 17  # pixels per side, from which the three groups leave one
_MAX_SHIFT = 2
_MOMENTUM = 0.85
_LEARNING_RATE = 11.5 / (1 + 1 / (1 - _MOMENTUM))  # of 1,024 rows
_WEIGHT_DECAY = 0.0153 / 11.5
_BIAS_SCALE = 64.0  # learning rate of the biases of norms, relative to that of the other weights
_WARMUP, _FIRST, _LAST = 0.23, 0.2, 0.07  # share of the steps until the peak; first and last rate, relative to the peak


def cifar10_airbench() -> Recipe:
    """Return the recipe; images are shifted and mirrored by the network, so the pipeline does not augment them."""
    return Recipe(
        name="cifar10-airbench",
        data=Data(source="cifar10"),
        model=own(airbench94),
        training=Training(
            epochs=_EPOCHS,
            batch_size=1024,
            optimizer=Own(factory=own(nesterov)),
            label_smoothing=0.2,
            augment=PixelAugment(max_shift=0),
        ),
        gate=Gate(minimum=0.93),
        resources=Resources(device="cuda"),
    )


def airbench94(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Build the network for images of at least 17 x 17 pixels; random weights, the first layer not yet whitened."""
    height, width, channels = image_shape
    if min(height, width) < _SMALLEST:
        raise ValueError(
            f"airbench94 requires images of at least {_SMALLEST} x {_SMALLEST} pixels, got {height} x {width}"
        )
    return Airbench94(height, width, channels, num_classes=num_classes)


def nesterov(model: nn.Module, *, total_steps: int) -> tuple[torch.optim.Optimizer, LambdaLR]:
    """Return SGD whose rate rises and falls in a line; biases of norms learn faster, with the decay of the others."""
    for module in model.modules():
        if isinstance(module, Airbench94):
            module.steps_per_epoch = max(1, total_steps // _EPOCHS)
    norms = {id(module.bias) for module in model.modules() if isinstance(module, nn.BatchNorm2d)}
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    biases = [weight for weight in trained if id(weight) in norms]
    others = [weight for weight in trained if id(weight) not in norms]
    fast = {"lr": _LEARNING_RATE * _BIAS_SCALE, "weight_decay": _WEIGHT_DECAY / _BIAS_SCALE}
    options: dict[str, Any] = {"lr": _LEARNING_RATE, "weight_decay": _WEIGHT_DECAY, "momentum": _MOMENTUM}
    groups: list[dict[str, Any]] = [{"params": others}, {"params": biases, **fast}]
    optimizer = torch.optim.SGD(groups, **options, nesterov=True, fused=True)
    warmup = int(_WARMUP * total_steps)

    def share(step: int) -> float:
        if step < warmup:
            return _FIRST + (1 - _FIRST) * step / warmup
        return 1 - (1 - _LAST) * (step - warmup) / max(1, total_steps - warmup)

    return optimizer, LambdaLR(optimizer, share)


class Airbench94(nn.Module):
    """CNN of a whitening layer and three groups of two convolutions; BCHW floats to logits.

    In evaluation, logits are the mean over mirrored and shifted views of each image, as in the original: half the
    weight for the image, half for it moved by one pixel along the diagonal, each of them mirrored with equal weight.
    """

    steps_per_epoch = 1

    def __init__(self, height: int, width: int, channels: int, *, num_classes: int) -> None:
        super().__init__()
        whitened = 2 * channels * _WHITENED**2
        self.whitening = nn.Conv2d(channels, whitened, kernel_size=_WHITENED)
        self.whitening.weight.requires_grad_(False)
        nn.init.zeros_(self.whitening.bias)  # type: ignore[arg-type]
        inputs = (whitened, *_WIDTHS[:-1])
        self.groups = nn.Sequential(*(_Group(some, more) for some, more in zip(inputs, _WIDTHS, strict=True)))
        left = [(side - 1) // 2 // 2 // 2 for side in (height, width)]
        self.pool = nn.MaxPool2d((left[0], left[1]))
        self.head = nn.Linear(_WIDTHS[-1], num_classes, bias=False)

    @torch.no_grad()
    def initialize_from(self, images_BCHW: Tensor) -> None:
        """Set the first layer so that it whitens the patches of these images; its weights are not trained."""
        size = _WHITENED
        patches = images_BCHW.float().unfold(2, size, 1).unfold(3, size, 1).permute(0, 2, 3, 1, 4, 5)
        rows = patches.reshape(-1, images_BCHW.shape[1] * size**2)
        values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))
        scaled = (vectors / torch.sqrt(values + _WHITENING_EPS)).T.flip(0).reshape(-1, *self.whitening.weight.shape[1:])
        self.whitening.weight.copy_(torch.cat([scaled, -scaled]))

    def forward(self, images_BCHW: Tensor) -> Tensor:
        if self.training:
            return self.one_view(shifted(self.mirrored_in_turn(images_BCHW)))
        height, width = images_BCHW.shape[2:]
        padded = pad(images_BCHW, (1, 1, 1, 1), mode="reflect")
        moved = self._mirrored(padded[..., :height, :width]) + self._mirrored(padded[..., 2:, 2:])
        return self._mirrored(images_BCHW) / 2 + moved / 4

    def mirrored_in_turn(self, images_BCHW: Tensor) -> Tensor:
        """Mirror about half of the images left to right, in the next epoch the others.

        The parity of an image's bits decides, and the number of steps that a norm has counted, so that a resumed
        training goes on the same way, and no step waits for the GPU.
        """
        epoch = self.groups[0].norm1.num_batches_tracked // self.steps_per_epoch  # type: ignore[operator, union-attr]
        chosen = (images_BCHW.view(torch.int32).sum((1, 2, 3)) + epoch) % 2 == 1
        return torch.where(chosen[:, None, None, None], images_BCHW.flip(3), images_BCHW)

    def _mirrored(self, images_BCHW: Tensor) -> Tensor:
        return (self.one_view(images_BCHW) + self.one_view(images_BCHW.flip(3))) / 2

    def one_view(self, images_BCHW: Tensor) -> Tensor:
        """Return the logits of the images as they are."""
        features = self.groups(gelu(self.whitening(images_BCHW)))
        logits: Tensor = self.head(self.pool(features).flatten(1)) * _LOGIT_SCALE
        return logits


def shifted(images_BCHW: Tensor) -> Tensor:
    """Move each image by up to two pixels each way, filled by reflection; drawn on the device of the images."""
    batch, _, height, width = images_BCHW.shape
    padded = pad(images_BCHW, (_MAX_SHIFT,) * 4, mode="reflect")
    offsets = torch.randint(0, 2 * _MAX_SHIFT + 1, (2, batch, 1), device=images_BCHW.device)
    rows = offsets[0] + torch.arange(height, device=images_BCHW.device)
    columns = offsets[1] + torch.arange(width, device=images_BCHW.device)
    index = torch.arange(batch, device=images_BCHW.device)[:, None, None]
    return padded.permute(0, 2, 3, 1)[index, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


class _Group(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv1, self.conv2 = _identity_conv(inputs, outputs), _identity_conv(outputs, outputs)
        self.pool, self.norm1, self.norm2 = nn.MaxPool2d(2), _norm(outputs), _norm(outputs)
        self.activation = nn.GELU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.activation(self.norm1(self.pool(self.conv1(x))))
        return self.activation(self.norm2(self.conv2(x)))  # type: ignore[no-any-return]


def _identity_conv(inputs: int, outputs: int) -> nn.Conv2d:
    """Return a convolution whose first outputs are its inputs."""
    conv = nn.Conv2d(inputs, outputs, kernel_size=3, padding="same", bias=False)
    nn.init.dirac_(conv.weight.data[:inputs])
    return conv


def _norm(features: int) -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(features, eps=1e-12, momentum=0.4)  # the record's "momentum 0.6" is the share that is kept
    norm.weight.requires_grad_(False)
    return norm
