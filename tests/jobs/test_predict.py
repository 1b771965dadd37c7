"""One prediction for each row, also for rows without an image."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import torch

from storage import tables
from storage.uri import CheckpointURI, DatasetURI, PredictionsURI, Root
from tasks.jobs.predict.job import Predictor
from tasks.jobs.spec import PredictSpec
from tasks.learning import images
from tasks.learning.hardware import Hardware
from tasks.learning.modeling import ModelSpec


def test_a_row_without_image_or_label_is_predicted_as_null(tmp_path: Path) -> None:
    columns = images.schema((2, 2, 1), ("cat", "dog"))
    rows = pa.table(
        [pa.array([0, 1, 2]), pa.array([b"abcd", None, b"efgh"], columns.field("image").type), pa.array([0, None, 1])],
        schema=columns,
    )
    uri = DatasetURI(f"{tmp_path}/pets-0123456789ab")
    part = tables.write_part(uri, rows, split="test", index=0)
    predictor = object.__new__(Predictor)  # without a checkpoint: what it answers is not the point
    predictor.spec = PredictSpec(
        storage=Root(str(tmp_path)),
        deadline_s=1,
        model=CheckpointURI(f"{tmp_path}/x-0123456789ab"),
        source=uri,
        target=PredictionsURI(f"{tmp_path}/y-0123456789ab"),
        split=None,
        workers=None,
    )
    predictor.origins = None
    spec = ModelSpec(model="resnet18", image_shape=(2, 2, 1), classes=("cat", "dog"), mean=(0.0,), std=(1.0,))
    answer = np.array([[0.2, 0.8]] * 3, dtype=np.float32)
    predictor.inference = SimpleNamespace(  # type: ignore[assignment]
        model=SimpleNamespace(spec=spec),
        identity="it",
        hardware=Hardware.here(torch.device("cpu"), precision="fp32"),
        probabilities=lambda pixels: answer[: len(pixels)],
    )
    made = predictor._predict(part)
    assert made["id"].to_pylist() == [0, 1, 2] and made["label"].to_pylist() == [0, None, 1]
    assert made["prediction"].to_pylist() == [1, None, 1]
    assert made["probability_dog"].is_null().to_pylist() == [False, True, False]
