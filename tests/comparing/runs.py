"""Runs on a person's images whose model never trained: its predictions are given, all else is real."""

import hashlib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from storage import manifest, tables
from storage.uri import URI, CheckpointURI, DatasetURI, PredictionsURI, Root
from tasks.evaluate import write_evaluation
from tasks.images import row_tables
from tasks.learning import images, recipes
from tasks.learning.recipes import Data, FileAugment, Recipe, Split, Training
from tasks.orchestration.stage import make_once
from tasks.stages import Evaluate, Predict, Preprocess, Train
from tests import committed
from tests.jobs.raw import run as run_job
from tests.jobs.raw import to_ingest

RECIPE = Recipe(
    name="photos",
    data=Data(source="user-images", image_size=8, store="files"),
    model="small-cnn",
    training=Training(epochs=2, augment=FileAugment(crop_scale=0.3)),
)


def ingest(root: Root, folder: Path) -> DatasetURI:
    """The raw dataset of the files in `folder` as they are now."""
    stage = to_ingest(root, URI(str(folder)))
    return make_once(stage, lambda: run_job(stage))


def prepare(root: Root, raw: DatasetURI) -> DatasetURI:
    """The prepared dataset of `raw`."""
    stage = Preprocess(root=root, raw=raw, split=Split(validation_fraction=0.2, max_quarantined=0.5))
    return make_once(stage, lambda: run_job(stage))


def run(
    root: Root,
    folder: Path,
    *,
    wrong: Mapping[str, str] | None = None,
    statistics: Mapping[str, Any] = MappingProxyType({}),
    **settings: Any,
) -> CheckpointURI:
    """A run on `folder` with `settings` of the recipe; its model takes the test files in `wrong` for these classes."""
    prepared, recipe = prepare(root, ingest(root, folder)), recipes.override(RECIPE, settings)
    digest = hashlib.sha256(f"{prepared} {recipe} {wrong}".encode()).hexdigest()[:12]
    checkpoint = CheckpointURI(root.child(f"checkpoints/photos-{digest}"))
    committed.commit(
        checkpoint,
        "checkpoint",
        parents={"prepared": prepared},
        parameters=Train(prepared=prepared, recipe=recipe, workers=1).values,
        recipe=recipe.to_dict(),
        **statistics,
    )
    predict(root, checkpoint, prepared, wrong or {})
    return checkpoint


def predict(root: Root, checkpoint: CheckpointURI, prepared: DatasetURI, wrong: Mapping[str, str]) -> PredictionsURI:
    """The predictions of `checkpoint` on test rows, and their evaluation."""
    made = manifest.load(prepared)
    classes = images.classes_of(made.columns["metadata"])
    stage = Predict(root=root, checkpoint=checkpoint, dataset=prepared, split="test")
    target = stage.target
    listed = []
    sources = row_tables.table_of(prepared)
    assert sources is not None
    for index, part in enumerate(made.split("test")):
        rows = tables.read_part(prepared, part, columns=["id", "label"])
        ids, labels = rows["id"].to_pylist(), rows["label"].to_pylist()
        files, numbers, digests = row_tables.files_of(sources, "test", ids)
        answers = [
            classes.index(wrong[file]) if file in wrong else label for file, label in zip(files, labels, strict=True)
        ]
        probabilities = np.full((len(ids), len(classes)), 0.05, np.float32)
        probabilities[np.arange(len(ids)), answers] = [0.5 + 0.01 * (id_ % 40) for id_ in ids]
        columns = {
            "id": ids,
            "file": files,
            "row": pa.array(numbers, pa.int64()),
            "sha256": digests,
            "label": labels,
            "prediction": answers,
        }
        columns |= {"class_name": [classes[answer] for answer in answers], "probability": probabilities.max(1)}
        columns |= {f"probability_{name}": probabilities[:, number] for number, name in enumerate(classes)}
        table = pa.table(columns)
        listed.append(tables.write_part(target, table, split="test", index=index))
    committed.commit(
        target,
        "predictions",
        listed,
        parents={"checkpoint": checkpoint, "dataset": prepared},
        parameters=stage.values,
        schema=tables.describe(table.schema),
    )
    write_evaluation(Evaluate(predictions=target))
    return target
