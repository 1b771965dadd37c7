"""A trained model as a function from raw images to probabilities."""

import numpy as np
import torch

from storage.uri import CheckpointURI
from tasks.learning import checkpoint
from tasks.learning.modeling import autocast, place

_BATCH = 512


class Inference:
    """The model of a committed checkpoint, on this process's GPU where there is one, at the precision it learned in."""

    def __init__(self, uri: CheckpointURI, *, threads: int) -> None:
        torch.set_num_threads(threads)
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model, meta = checkpoint.load_model(uri)
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
