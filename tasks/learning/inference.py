"""A trained model as a function from raw images to probabilities."""

import contextlib
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from storage import process
from storage.admin import catalog
from storage.kinds import CheckpointURI
from storage.statistics import EpochMetrics
from storage.uri import parse_root
from tasks.learning import decode, hardware, training_state
from tasks.learning.modeling import Classifier, autocast, head_layer, move_model, resolve_precision, set_arithmetic

_ON_CPU, _ON_GPU = 512, 4096
"""Most images to compute at a time, as long as they fit into memory."""
_FEW = 64
"""Images of the batch that shows how much memory a GPU needs; padded batches are multiples of it."""
DECIMALS = 4
"""Of a distance: float16, in which the known images are stored, holds no more."""
Picture = str | os.PathLike[str] | bytes
"""An image file's path, or its bytes."""


class Model(nn.Module):
    """Module from raw images (uint8, (N, H, W, C)) to probabilities (float32, (N, classes)).

    Images are a tensor or a NumPy array of the model's own shape, or a list of image files of any size. It computes
    at `precision`, that of its training and evaluation: `fp32` or `bf16`. In fp32 on a GPU, torch rounds the inputs of
    convolutions to TF32, unless `torch.backends.cudnn.allow_tf32` is False; the setting is the caller's.
    """

    def __init__(self, classifier: Classifier, history: Sequence[EpochMetrics], *, precision: str) -> None:
        super().__init__()
        self.classifier = classifier
        self.history = list(history)
        self.precision = precision
        self.classes = classifier.spec.classes
        self.image_shape = classifier.spec.image_shape

    def forward(self, images: Tensor | np.ndarray | Sequence[Picture]) -> Tensor:
        """Return the probabilities of `images`; only files are resized."""
        if isinstance(images, list | tuple):
            images = self.prepare(images)
        if not isinstance(images, Tensor | np.ndarray):
            raise ValueError(
                f"images must be a tensor, a NumPy array, or a list of paths or bytes, got {type(images).__name__}"
            )
        dtype = str(images.dtype).removeprefix("torch.")
        if dtype != "uint8" or images.ndim != 4 or tuple(images.shape[1:]) != tuple(self.image_shape):
            wanted, shape = ", ".join(map(str, self.image_shape)), ", ".join(map(str, images.shape))
            raise ValueError(
                f"images must be uint8 of shape (N, {wanted}), got {dtype} of shape ({shape}); model.prepare([...]) "
                "reads image files of any size"
            )
        if isinstance(images, np.ndarray):
            images = torch.from_numpy(np.require(images, requirements=["C", "W"])).to(self.classifier.mean.device)
        with autocast(self.precision, images.device):
            logits: Tensor = self.classifier(images)
        return self.classifier.probabilities(logits)

    def prepare(self, pictures: Sequence[Picture]) -> Tensor:
        """Resize image files exactly as ingestion resizes the user's own images.

        Each picture is rotated by its EXIF, put on white where it is transparent, scaled until its shorter side fits,
        and cropped to its centre.

        Returns:
            uint8, (N, height, width, channels), on the model's device.

        Raises:
            ValueError: A picture cannot be read; the message names it and the reason.
        """
        height, width, channels = self.image_shape
        if height != width:
            raise ValueError(
                f"the model expects images of {height} x {width} pixels; pictures can only be resized to squares"
            )
        pixels = [_pixels(picture, number, size=height, channels=channels) for number, picture in enumerate(pictures)]
        batch = np.frombuffer(bytearray(b"".join(pixels)), np.uint8).reshape(len(pixels), *self.image_shape)
        return torch.from_numpy(batch).to(self.classifier.mean.device)


def load(model: str = "champion", *, storage: str | None = None) -> Model:
    """Load a model, ready to use, and verify every byte of it.

    Args:
        model: URI or name of a checkpoint; `champion:NAME`, that of registered model NAME; or `champion`, the only one,
            or the only one trained on your own images.
        storage: Storage root with the champions; None: $PIPELINE_STORAGE or ./data.

    Raises:
        ValueError: There is no such champion, or there are several; the message lists them.
        FileNotFoundError: Nothing is committed at the URI.
    """
    root = parse_root(storage or os.environ.get("PIPELINE_STORAGE") or "./data", option="storage")
    classifier, meta = training_state.load_model(CheckpointURI(catalog.named(root, model, option="model")))
    loaded = Model(classifier, meta.history, precision=meta.resolved.precision)
    return loaded.eval().requires_grad_(False)


def _pixels(picture: Picture, number: int, *, size: int, channels: int) -> bytes:
    if not isinstance(picture, str | os.PathLike | bytes):
        raise ValueError(f"picture {number} must be a path or the bytes of a file, got {type(picture).__name__}")
    name = f"picture {number}" if isinstance(picture, bytes) else str(picture)
    try:
        content = picture if isinstance(picture, bytes) else Path(picture).expanduser().read_bytes()
        return decode.decoded(content, size, channels).pixels
    except decode.Unreadable as error:
        raise ValueError(f"{name} cannot be used: {error}") from None


class Inference:
    """Model of a committed checkpoint on `device`, at `precision`, by default that of its training.

    On a GPU without bf16 it is fp32. With `known`, the directions of images as the backbone of its probe gives them, or
    its only one (float32, (N, dimensions)), it also says how far an image is from the nearest of them. With
    `is_padded`, as by default on a GPU, all batches have one shape: cuDNN chooses its algorithms once for each.
    """

    def __init__(
        self,
        uri: CheckpointURI,
        *,
        threads: int,
        device: torch.device,
        precision: str | None = None,
        known: np.ndarray | None = None,
        is_padded: bool | None = None,
    ) -> None:
        torch.set_num_threads(threads)
        self.device = device
        self._is_padded = device.type == "cuda" if is_padded is None else is_padded
        self._padded_size = 0
        if self.device.type == "cpu":
            process.keep_memory()
        classifier, meta = training_state.load_model(uri)
        self.identity = meta.identity
        """Digest of everything that decides its predictions; equal for two trainings with bit-identical results."""
        self.precision = precision or meta.resolved.precision
        if self.precision == "bf16" and self.device.type == "cuda":
            self.precision = resolve_precision("auto", self.device, classifier)
        placed = move_model(classifier, precision=self.precision, device=self.device)
        self.model = Model(placed, meta.history, precision=self.precision).eval()
        self._known = None if known is None else torch.from_numpy(known).to(self.device)
        self._features = torch.empty(0)
        """What the last layer was given in the latest forward pass."""
        if self._known is not None:
            embedding = placed.backbone if placed.probe is None else placed.probe
            head_layer(embedding).register_forward_pre_hook(lambda _, given: setattr(self, "_features", given[0]))
        self.batch_size = self._fitting() if self.device.type == "cuda" else _ON_CPU
        """Most images to compute at a time."""
        set_arithmetic(self.precision, self.device)  # not before: cuDNN would time algorithms for few images, too
        self.hardware = hardware.here(self.device, precision=self.precision)

    def probabilities(self, pixels: np.ndarray) -> np.ndarray:
        """Compute probabilities (float32, (N, classes)) of images (uint8, NHWC)."""
        return self.predictions(pixels)[:, : len(self.model.classes)]

    @torch.inference_mode()
    def predictions(self, pixels: np.ndarray) -> np.ndarray:
        """Compute probabilities (float32, (N, classes)) of images (uint8, NHWC), in batches from the first row on.

        With known images there is a column more: 1 - cosine of the angle to the nearest, rounded to `DECIMALS`. If a
        GPU's memory is full, this batch and all later ones are halved; on GPUs that may change their last bits.
        """
        num_columns, start, size = len(self.model.classes) + (self._known is not None), 0, self._size(len(pixels))
        images: Tensor | np.ndarray = pixels
        if self._is_padded:
            shape = (math.ceil(len(pixels) / size) * size, *pixels.shape[1:])
            host = torch.empty(shape, dtype=torch.uint8, pin_memory=self.device.type == "cuda")
            host.numpy()[: len(pixels)] = pixels
            host[len(pixels) :] = 0
            images = host.to(self.device, non_blocking=True)
        chunks = [torch.empty(0, num_columns, device=self.device)]
        while start < len(images):
            rows = images[start : start + size]
            try:
                chunks.append(self._predicted(rows))
                start += len(rows)
            except torch.OutOfMemoryError:
                if len(rows) == 1:
                    raise
                size = self.batch_size = len(rows) // 2
            if size < len(rows):  # not before the error is gone, which holds tensors
                torch.cuda.empty_cache()
        return np.asarray(torch.cat(chunks)[: len(pixels)].cpu().numpy())  # only now the host waits for a GPU

    def _size(self, num_rows: int) -> int:
        """Return the size of the batches of `num_rows` rows; padded ones are few and never become smaller."""
        if self._is_padded and num_rows:
            least = math.ceil(num_rows / math.ceil(num_rows / self.batch_size) / _FEW) * _FEW
            self._padded_size = min(self.batch_size, max(self._padded_size, least))
        return self._padded_size or self.batch_size

    @torch.inference_mode()
    def _fitting(self) -> int:
        """Return the power of two of images that need half of a GPU's free memory at most, judged by what few need."""
        images = torch.zeros((_FEW, *self.model.image_shape), dtype=torch.uint8, device=self.device)
        with contextlib.suppress(torch.OutOfMemoryError):  # then the peak is all that was free
            for _ in range(2):  # libraries keep what they allocate in the first one
                torch.cuda.reset_peak_memory_stats(self.device)
                before = torch.cuda.memory_allocated(self.device)
                self._predicted(images)
        needed = max(1, torch.cuda.max_memory_allocated(self.device) - before) / _FEW
        torch.cuda.empty_cache()
        free, _ = torch.cuda.mem_get_info(self.device)
        return int(min(_ON_GPU, 2 ** math.floor(math.log2(max(1, free / 2 / needed)))))

    def _predicted(self, images: Tensor | np.ndarray) -> Tensor:
        probabilities: Tensor = self.model(images)
        if self._known is None:
            return probabilities
        cosines = functional.normalize(self._features.float().flatten(1)) @ self._known.T
        return torch.column_stack([probabilities, (1 - cosines.amax(1)).clamp(min=0).round(decimals=DECIMALS)])


class Heads:
    """What a model with another last layer says of the same images: on CPUs the bits of its own `Inference`."""

    def __init__(self, inference: Inference, images: Iterable[np.ndarray]) -> None:
        """Compute what the last layer is given, for images (uint8, NHWC) in parts; `inference` must not pad them."""
        self._inputs = list[Tensor]()
        layer = head_layer(inference.model.classifier.backbone)
        hook = layer.register_forward_pre_hook(lambda _, inputs: self._inputs.append(inputs[0]))
        for pixels in images:
            inference.probabilities(pixels)
        hook.remove()

    @torch.inference_mode()
    def probabilities(self, weights: np.ndarray, bias: np.ndarray, *, temperature: float) -> np.ndarray:
        """Return the probabilities (float32, (N, classes)) of a linear layer in fp32."""
        device = self._inputs[0].device
        layer = [torch.from_numpy(values).to(device, torch.float32) for values in (weights, bias)]
        logits = (functional.linear(inputs, *layer) for inputs in self._inputs)
        return np.concatenate([(each / temperature).softmax(1).cpu().numpy() for each in logits])
