"""An exported model in memory: its answer for an image file."""

from typing import Any

import numpy as np

from storage import manifest
from storage.kinds import CHECKPOINT, CheckpointURI, DatasetURI, ExportURI
from tasks.exporting import onnx_file
from tasks.images import embedding_rows
from tasks.learning import decode
from tasks.learning.inference import DECIMALS
from tasks.learning.recipes import flat
from tasks.stages import Predict


class ServedModel:
    """An exported model; threads may share it."""

    def __init__(self, export: ExportURI) -> None:
        """Load `export`, every byte verified; raise `ValueError` if photos cannot be resized to the model's images."""
        exported = manifest.load(export)
        self.checkpoint = CheckpointURI(exported.parent("checkpoint", of=export))
        prepared = DatasetURI(exported.parent("prepared", of=export))
        trained, embeddings = manifest.load(self.checkpoint), Predict.of(self.checkpoint, prepared).embeddings
        self.named = {"name": self.checkpoint.name, "digest": trained.digest}
        recorded, file = trained.statistics_of(CHECKPOINT), exported.file("model")
        assert file, "every export has it"
        self._classes, self._shape = recorded.model.classes, recorded.model.image_shape
        if self._shape[0] != self._shape[1] or self._shape[2] not in (1, 3):
            raise ValueError(f"model: images of shape {self._shape} cannot be made of photos; use another model")
        self._max_megapixels = flat(recorded.recipe)["max_megapixels"]
        self._known = embedding_rows.known_directions(embeddings) if embeddings else None
        self._run = onnx_file.load(manifest.read_file(export, file), threads=1)

    def answer(self, content: bytes) -> dict[str, Any]:
        """Return what the model says of the image file `content`; raise `decode.Unreadable` if it cannot be used."""
        _, size, channels = self._shape
        image = decode.decoded(content, size, channels, max_megapixels=self._max_megapixels)
        outputs = self._run(np.frombuffer(image.pixels, np.uint8).reshape(1, *self._shape))
        probabilities, distance = outputs[0][0].tolist(), None
        if self._known is not None:
            cosines = self._known @ embedding_rows.directions(outputs[1])[0]
            distance = round(max(0.0, 1 - float(cosines.max())), DECIMALS)
        best = int(np.argmax(probabilities))
        return {
            "class": self._classes[best],
            "probability": probabilities[best],
            "probabilities": dict(zip(self._classes, probabilities, strict=True)),
            "distance": distance,
            "checkpoint": self.named,
        }
