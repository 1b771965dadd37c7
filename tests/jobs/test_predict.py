"""One prediction for each row, also for rows without an image; parts are read ahead."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
import torch

from storage import tables
from storage.manifest import File
from storage.uri import URI, CheckpointURI, DatasetURI, PredictionsURI, Root
from tasks.jobs.predict.job import Predictor
from tasks.jobs.spec import PredictSpec
from tasks.learning import images
from tasks.learning.hardware import Hardware
from tasks.learning.modeling import ModelSpec


def make_predictor(folder: Path, probabilities: Callable[[np.ndarray], np.ndarray]) -> Predictor:
    """A worker without a checkpoint, whose answers come from `probabilities`."""
    predictor = object.__new__(Predictor)
    predictor.spec = PredictSpec(
        storage=Root(str(folder)),
        deadline_s=1,
        model=CheckpointURI(f"{folder}/x-0123456789ab"),
        source=DatasetURI(f"{folder}/pets-0123456789ab"),
        target=PredictionsURI(f"{folder}/y-0123456789ab"),
        split=None,
        workers=None,
    )
    predictor.origins, predictor._turn = None, threading.Lock()
    spec = ModelSpec(model="resnet18", image_shape=(2, 2, 1), classes=("cat", "dog"), mean=(0.0,), std=(1.0,))
    predictor.inference = SimpleNamespace(  # type: ignore[assignment]
        model=SimpleNamespace(spec=spec),
        identity="it",
        hardware=Hardware.here(torch.device("cpu"), precision="fp32"),
        probabilities=probabilities,
    )
    return predictor


def rows(*pictures: bytes | None) -> pa.Table:
    columns, labels = images.schema((2, 2, 1), ("cat", "dog")), [0, None, 1][: len(pictures)]
    arrays = [pa.array(range(len(pictures))), pa.array(pictures, columns.field("image").type), pa.array(labels)]
    return pa.table(arrays, schema=columns)


def test_a_row_without_image_or_label_is_predicted_as_null(tmp_path: Path) -> None:
    answer = np.array([[0.2, 0.8]] * 3, dtype=np.float32)
    predictor = make_predictor(tmp_path, lambda pixels: answer[: len(pixels)])
    part = tables.write_part(predictor.spec.source, rows(b"abcd", None, b"efgh"), split="test", index=0)
    made = predictor._predict(part)
    assert made["id"].to_pylist() == [0, 1, 2] and made["label"].to_pylist() == [0, None, 1]
    assert made["prediction"].to_pylist() == [1, None, 1]
    assert made["probability_dog"].is_null().to_pylist() == [False, True, False]


def test_a_part_is_read_while_another_is_computed_and_then_waits_for_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_read, parts_read, computed_at_once, read_part = threading.Event(), list[File](), list[int](), tables.read_part
    running = list[int]()

    def read(uri: URI, file: File) -> pa.Table:
        parts_read.append(file)
        if len(parts_read) == 2:
            both_read.set()
        return read_part(uri, file)

    def probabilities(pixels: np.ndarray) -> np.ndarray:
        running.append(len(pixels))
        assert both_read.wait(60), "the second part is not read before the first one is done"
        computed_at_once.append(len(running))
        running.pop()
        return np.array([[0.2, 0.8]] * len(pixels), dtype=np.float32)

    monkeypatch.setattr(tables, "read_part", read)
    predictor = make_predictor(tmp_path, probabilities)
    uri = predictor.spec.source
    parts = [tables.write_part(uri, rows(picture), split="test", index=0) for picture in (b"abcd", b"efgh")]
    with ThreadPoolExecutor(2) as threads:
        list(threads.map(predictor._predict, parts))
    assert computed_at_once == [1, 1]
