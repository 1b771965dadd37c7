"""Embeddings: what the backbone of a model says about an image, before the last layer of its head."""

import numpy as np
import torch

from storage import process
from tasks.learning import hardware
from tasks.learning.loaders import moved
from tasks.learning.modeling import Classifier, detach_last_layer, move_model, set_arithmetic

_BATCH = {"cpu": 1, "cuda": 256}
"""Images of a batch, by device, the last one filled up: an image's embedding must not depend on which others are new.
On a CPU several threads compute an image each; a batch of one takes at most 1.3 times as long per image."""


class Embedder:
    """A backbone on its device, in fp32: equal images have equal embeddings, whatever is computed beside them."""

    def __init__(self, model: Classifier, *, threads: int, device: torch.device) -> None:
        if device.type == "cpu":
            process.keep_memory()
        set_arithmetic("fp32", device)
        detach_last_layer(model)
        self._model = move_model(model, precision="fp32", device=device).eval()
        self._device, self._threads = device, threads if device.type == "cpu" else 1
        self.hardware = hardware.here(device, precision="fp32")

    def embeddings(self, pixels_NHWC: np.ndarray) -> np.ndarray:
        """Return the embeddings (float16, (N, dimensions)) of images (uint8).

        Raises `ValueError` if one is no finite number in float16.
        """
        size = _BATCH[self._device.type]
        batches = [pixels_NHWC[start : start + size] for start in range(0, max(1, len(pixels_NHWC)), size)]
        return np.concatenate(list(process.in_threads(self._embedded, batches, threads=self._threads)))

    @torch.inference_mode()
    def _embedded(self, pixels_NHWC: np.ndarray) -> np.ndarray:
        torch.set_num_threads(1)  # of this thread: the others compute other images
        images = np.zeros((_BATCH[self._device.type], *pixels_NHWC.shape[1:]), np.uint8)
        images[: len(pixels_NHWC)] = pixels_NHWC
        normalized = self._model.normalized(moved(torch.from_numpy(images), self._device))
        features: np.ndarray = self._model.backbone(normalized)[: len(pixels_NHWC)].flatten(1).half().cpu().numpy()
        if not np.isfinite(features).all():
            model = self._model.spec.model
            raise ValueError(f"model {model} gives embeddings that are not finite in float16; use training=finetune")
        return features
