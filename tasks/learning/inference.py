"""A trained model as a function from raw images to probabilities."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor, nn

from storage import registry
from storage.uri import CheckpointURI, parse_root
from tasks.learning import memory, state
from tasks.learning.modeling import Classifier, autocast, place

_BATCH = 512


class Model(nn.Module):
    """From raw images (uint8, (N, H, W, C)) to probabilities (float32, (N, classes)); fp32 wherever it is put."""

    def __init__(self, classifier: Classifier, history: Sequence[dict[str, float]]) -> None:
        super().__init__()
        self.classifier = classifier
        self.history = list(history)
        self.classes = classifier.spec.classes
        self.image_shape = classifier.spec.image_shape

    def forward(self, images_BHWC: Tensor) -> Tensor:
        logits: Tensor = self.classifier(images_BHWC)
        return logits.softmax(1)


def load(model: str, *, storage: str = "./data") -> Model:
    """The model of a checkpoint's URI, or of `champion:NAME` of a data set, ready to be used or exported.

    Every byte is checked. Raises `ValueError` when there is no champion, `FileNotFoundError` when nothing is committed.
    """
    uri = CheckpointURI(parse_root(model, option="model")) if not model.startswith("champion:") else None
    if uri is None:
        root, name = parse_root(storage, option="storage"), model.removeprefix("champion:")
        uri = registry.champion(root, name)
        if uri is None:
            raise ValueError(f"{root} has no champion of {name!r}")
    classifier, meta = state.load_model(uri)
    return Model(classifier, meta.history).eval().requires_grad_(False)


class Inference:
    """The model of a committed checkpoint, on this process's GPU where there is one, at the precision it learned in."""

    def __init__(self, uri: CheckpointURI, *, threads: int) -> None:
        torch.set_num_threads(threads)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        if self.device.type == "cpu":
            memory.keep()
        model, meta = state.load_model(uri)
        self.precision = str(meta.resolved["precision"])
        self.model = place(model, precision=self.precision, device=self.device).eval()

    @torch.inference_mode()
    def probabilities(self, pixels: np.ndarray) -> np.ndarray:
        """Softmax of the logits, float32, (N, classes), for images (uint8, NHWC); batches start at the first row."""
        chunks = [torch.empty(0, len(self.model.spec.classes))]
        for start in range(0, len(pixels), _BATCH):
            batch = torch.from_numpy(pixels[start : start + _BATCH].copy()).to(self.device)
            with autocast(self.precision, self.device):
                logits = self.model(batch)
            chunks.append(logits.float().softmax(1).cpu())
        return np.asarray(torch.cat(chunks).numpy())
