"""Runs on a person's images whose model never trained: its predictions are given, all else is real."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from storage import manifest, tables
from storage.kinds import CheckpointURI, DatasetURI, EvaluationURI
from storage.uri import URI, Root
from tasks.evaluate import evaluate
from tasks.images import row_tables
from tasks.learning import images, recipes
from tasks.learning.recipes import Data, FileAugment, Recipe, Split, Training
from tasks.orchestration.stage import make_once
from tasks.stages import Predict, Preprocess, Train
from tests import committed
from tests.jobs.raw import run as run_job
from tests.jobs.raw import to_ingest

RECIPE = Recipe(
    name="photos",
    data=Data(source="user-images", image_size=8, store="files"),
    model="small-cnn",
    training=Training(epochs=2, augment=FileAugment(crop_scale=0.3)),
)


def ingest(root: Root, folder: Path, **fields: Any) -> DatasetURI:
    """The raw dataset of the files in `folder` as they are now."""
    stage = to_ingest(root, URI(str(folder)), **fields)
    return make_once(stage, lambda: run_job(stage))


def prepare(root: Root, raw: DatasetURI) -> DatasetURI:
    """The prepared dataset of `raw`."""
    stage = Preprocess(root=root, raw=raw, split=Split(validation_fraction=0.2, max_quarantined=0.5))
    return make_once(stage, lambda: run_job(stage))


def run(root: Root, folder: Path, *, wrong: Mapping[str, str] = MappingProxyType({}), **settings: Any) -> CheckpointURI:
    """A run on `folder` with `settings` of the recipe; its model takes the test files in `wrong` for these classes."""
    prepared, recipe = prepare(root, ingest(root, folder)), recipes.override(RECIPE, settings)
    digest = hashlib.sha256(f"{prepared} {recipe} {wrong}".encode()).hexdigest()[:12]
    checkpoint = CheckpointURI(root.child(f"checkpoints/photos-{digest}"))
    stage = Train(prepared=prepared, recipe=recipe, workers=1)
    committed.commit(checkpoint, "checkpoint", parents=stage.parents, parameters=stage.values, recipe=recipe.to_dict())
    predict(root, checkpoint, prepared, wrong)
    return checkpoint


def predict(root: Root, checkpoint: CheckpointURI, prepared: DatasetURI, wrong: Mapping[str, str]) -> EvaluationURI:
    """Commit the predictions of `checkpoint` on test rows, and return their evaluation."""
    classes, sources = images.classes_of(manifest.load(prepared).columns["metadata"]), row_tables.table_of(prepared)
    stage = Predict(root=root, checkpoint=checkpoint, dataset=prepared, split="test")
    rows = tables.read_split(prepared, "test", columns=["id", "label"]).to_pandas()
    assert sources is not None
    files, numbers, digests = row_tables.files_of(sources, "test", rows["id"].tolist())
    answers = [
        classes.index(wrong[file]) if file in wrong else label for file, label in zip(files, rows["label"], strict=True)
    ]
    probabilities = np.full((len(rows), len(classes)), 0.05, np.float32)
    probabilities[np.arange(len(rows)), answers] = 0.5 + 0.01 * (rows["id"] % 40)
    table = committed.predictions(rows["label"].to_numpy(), probabilities, classes)
    table = table.set_column(0, "id", [rows["id"]]).append_column("file", [files])
    table = table.append_column("row", pa.array(numbers, pa.int64())).append_column("sha256", [digests])
    table = table.append_column("class_name", [[classes[answer] for answer in answers]])
    committed.commit_rows(stage.target, "predictions", table, parents=stage.parents, parameters=stage.values)
    return evaluate.fn(stage.target)
