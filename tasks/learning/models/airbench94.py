"""The network of airbench94, which reaches 94 % on CIFAR-10 within seconds: Keller Jordan, arXiv 2404.00498.

Sizes and constants are those of github.com/KellerJordan/cifar10-airbench, `legacy/airbench94.py`.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

_WIDTHS = (64, 256, 256)
_WHITENED = 2  # pixels per side of the patches that the first layer whitens
_WHITENING_EPS = 5e-4
_LOGIT_SCALE = 1 / 9
_SMALLEST = 17  # pixels per side, from which the three groups leave one


def build(*, image_shape: Sequence[int], num_classes: int) -> nn.Module:
    """Build the network for images of at least 17 x 17 pixels; random weights, the first layer not yet whitened."""
    height, width, channels = image_shape
    if min(height, width) < _SMALLEST:
        raise ValueError(
            f"model airbench94 requires images of at least {_SMALLEST} x {_SMALLEST} pixels, got {height} x {width}; "
            "use model=small-cnn"
        )
    return Airbench94(height, width, channels, num_classes=num_classes)


class Airbench94(nn.Module):
    """CNN of a whitening layer and three groups of two convolutions; BCHW floats to logits.

    In evaluation, logits are the mean over mirrored and shifted views of each image, as in the original: half the
    weight for the image, half for it moved by one pixel along the diagonal, each of them mirrored with equal weight.
    """

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
            return self.one_view(images_BCHW)
        height, width = images_BCHW.shape[2:]
        padded = pad(images_BCHW, (1, 1, 1, 1), mode="reflect")
        shifted = self._mirrored(padded[..., :height, :width]) + self._mirrored(padded[..., 2:, 2:])
        return self._mirrored(images_BCHW) / 2 + shifted / 4

    def _mirrored(self, images_BCHW: Tensor) -> Tensor:
        return (self.one_view(images_BCHW) + self.one_view(images_BCHW.flip(3))) / 2

    def one_view(self, images_BCHW: Tensor) -> Tensor:
        """Return the logits of the images as they are."""
        features = self.groups(nn.functional.gelu(self.whitening(images_BCHW)))
        logits: Tensor = self.head(self.pool(features).flatten(1)) * _LOGIT_SCALE
        return logits


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
    made = nn.Conv2d(inputs, outputs, kernel_size=3, padding="same", bias=False)
    nn.init.dirac_(made.weight.data[:inputs])
    return made


def _norm(features: int) -> nn.BatchNorm2d:
    made = nn.BatchNorm2d(features, eps=1e-12, momentum=0.4)  # the record's "momentum 0.6" is the share that is kept
    made.weight.requires_grad_(False)
    return made
