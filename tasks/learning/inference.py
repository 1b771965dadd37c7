"""A trained model as a function from raw images to probabilities."""

from collections.abc import Iterable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from storage import process
from storage.admin import champions
from storage.uri import CheckpointURI, parse_root
from tasks.learning import inputs, training_state
from tasks.learning.inputs import Images, Picture
from tasks.learning.modeling import Classifier, autocast, place, set_arithmetic
from tasks.learning.numerics import Numerics

_BATCH = 512


class Model(nn.Module):
    """Module from raw images (uint8, (N, H, W, C)) to probabilities (float32, (N, classes)); fp32 on every device.

    Images are a tensor or a NumPy array of the model's own shape, or PIL images of any size.
    """

    def __init__(self, classifier: Classifier, history: Sequence[dict[str, float]]) -> None:
        super().__init__()
        self.classifier = classifier
        self.history = list(history)
        self.classes = classifier.spec.classes
        self.image_shape = classifier.spec.image_shape

    def forward(self, images: Images) -> Tensor:
        device = self.classifier.mean.device
        logits: Tensor = self.classifier(inputs.as_batch(images, image_shape=self.image_shape, device=device))
        return logits.softmax(1)

    def prepare(self, pictures: Picture | Iterable[Picture]) -> np.ndarray:
        """Resize pictures (paths, bytes, PIL images, pixels) as training did; see `inputs.prepare`."""
        return inputs.prepare(pictures, image_shape=self.image_shape)


def load(model: str, *, storage: str = "./data") -> Model:
    """Load the model of a checkpoint's URI, or of `champion:NAME` with the name of a data set, ready to use or export.

    Every byte is verified. Raises `ValueError` listing the existing champions if there is no such champion, and
    `FileNotFoundError` if nothing is committed at the URI.
    """
    if model.startswith("champion:"):
        uri = champions.in_charge(parse_root(storage, option="storage"), model.removeprefix("champion:"))
    else:
        uri = CheckpointURI(parse_root(model, option="model"))
    classifier, meta = training_state.load_model(uri)
    return Model(classifier, meta.history).eval().requires_grad_(False)


class Inference:
    """Model of a committed checkpoint on `device`, at the precision it was trained in."""

    def __init__(self, uri: CheckpointURI, *, threads: int, device: torch.device) -> None:
        torch.set_num_threads(threads)
        self.device = device
        if self.device.type == "cpu":
            process.keep_memory()
        model, meta = training_state.load_model(uri)
        self.identity = meta.identity
        """Digest of everything that decides its predictions; equal for two trainings with bit-identical results."""
        self.precision = str(meta.resolved["precision"])
        set_arithmetic(self.precision, self.device)
        self.model = place(model, precision=self.precision, device=self.device).eval()
        self.numerics = Numerics.here(self.device, precision=self.precision)

    @torch.inference_mode()
    def probabilities(self, pixels: np.ndarray) -> np.ndarray:
        """Compute probabilities (float32, (N, classes)) of images (uint8, NHWC), in batches from the first row on."""
        chunks = [torch.empty(0, len(self.model.spec.classes))]
        for start in range(0, len(pixels), _BATCH):
            batch = torch.from_numpy(pixels[start : start + _BATCH].copy()).to(self.device)
            with autocast(self.precision, self.device):
                logits = self.model(batch)
            chunks.append(logits.float().softmax(1).cpu())
        return np.asarray(torch.cat(chunks).numpy())
