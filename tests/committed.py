"""Results that no stage made: any files, with statistics such as the stage records."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from storage import commits, tables
from storage.kinds import KINDS, PROBABILITY_PREFIX
from storage.manifest import File, Manifest, Parent
from storage.statistics import Resolved, SplitRule, Statistics
from storage.uri import URI
from tasks.learning import recipes

HARDWARE = "fp32 on cpu: EPYC, AVX2, avx, torch 2.14.1"
SOURCE = {"name": "images.gz", "sha256": "ab" * 32, "md5": "cd" * 16, "url": "https://mirror.example/images.gz"}
RESOLVED = Resolved(batch_size=128, class_weights="none", device="cpu", precision="fp32", threads=1, workers=1)
_SPLIT: dict[str, Any] = {"split_seed": 0, "validation_fraction": 0.1, "group": "none", "store": "pixels"}
ENDED: dict[str, Any] = {"split": SplitRule(**_SPLIT), "loader": "resident", "seconds": 7.5}
"""What `attempts.commit` is told besides the checkpoints."""
_CHANNELS: dict[str, Any] = {"mean": (0.0,), "std": (1.0,)}
_MODEL = {"model": "small-cnn", "image_shape": (28, 28, 1), "classes": tuple("0123456789")} | _CHANNELS
_IMAGES: dict[str, Any] = {"class_counts": {}, "notice": None, "seconds": 3.4}
_COMPUTED: dict[str, Any] = {"temperature": 1.0, "hardware": (HARDWARE,), "is_reproducible": True, "seconds": 7.5}
_SCORES = {"test_accuracy": 0.987654321, "balanced_accuracy": 0.876543211, "macro_f1": 0.765432111, "notice": None}
_COPIES = {"test_rows_in_train": {"count": 0, "ids": ()}, "images_in_two_classes": {"count": 0, "rows": 0, "named": ()}}
_TRAINED = {"best_epoch": 1, "history": (), "stopped_early": False, "resolved": vars(RESOLVED), "model": _MODEL}
_RECIPE = recipes.load("mnist-sample-resnet18").to_dict()
_NAMES = {"registered_model": "digits", "recipe": "digits-resnet18", "data": "digits", "dataset": "digits"}
_USUAL: dict[str, dict[str, Any]] = {
    "files": {"sources": (SOURCE,), "seconds": 1.2},
    "raw": _IMAGES | {"sources": (SOURCE,), "labels": ""},
    "prepared": _IMAGES | _CHANNELS | _COPIES | {"quarantined": {}, "split": _SPLIT, "near_duplicates": None},
    "checkpoint": _COMPUTED | _TRAINED | ENDED | {"split": _SPLIT, "recipe": _RECIPE},
    "predictions": _COMPUTED | {"predicted": {}, "unpredicted": 0, "reused_parts": 0, "notice": None},
    "evaluation": _SCORES | {"test_loss": 1.0, "expected_calibration_error": 0.0, "num_rows": 100},
    "report": _NAMES | {"changes": {}, "settings": {"epochs": 3}, "seconds": 75.0},
    "export": _SCORES | {"proof": {"rows": 100, "largest_difference": 1e-7}},
    "audit": {"rows": 100, "notice": None},
}
_NOTHING: Mapping[str, Any] = MappingProxyType({})


def statistics(kind: str, **changes: Any) -> Statistics:
    """Statistics of a result of `kind`, with `changes`, also of what a document such as `model` holds."""
    usual = _USUAL[kind]
    merged = {name: usual.get(name, {}) | value for name, value in changes.items() if isinstance(value, dict)}
    made: Statistics = KINDS[kind].statistics.model_validate(usual | changes | merged)
    return made


def commit(
    uri: URI,
    kind: str,
    listed: Sequence[File] = (),
    *,
    parents: Mapping[str, URI | Parent] = _NOTHING,
    parameters: Mapping[str, Any] = _NOTHING,
    schema: Mapping[str, Any] = _NOTHING,
    **changes: Any,
) -> Manifest:
    """Commit `uri` with these files, and with `changes` of its usual statistics."""
    about, recorded = {"parents": parents, "parameters": parameters, "schema": schema}, statistics(kind, **changes)
    return commits.commit(uri, kind=kind, listed=listed, statistics=recorded, **about)


def commit_rows(uri: URI, kind: str, rows: pa.Table, *more: File, **about: Any) -> Manifest:
    """Commit `uri` with `rows` as the only part of the test split, and `more` files."""
    part = tables.write_part(uri, rows, split="test", index=0)
    return commit(uri, kind, [part, *more], schema=tables.describe(rows.schema), **about)


def predictions(labels: Sequence[int] | np.ndarray, probabilities: np.ndarray, classes: Sequence[str]) -> pa.Table:
    """Predictions of rows with these labels; `probabilities` are (rows, classes)."""
    columns: dict[str, Any] = {"id": np.arange(len(labels)), "label": labels, "prediction": probabilities.argmax(1)}
    columns |= {"probability": probabilities.max(1)}
    return pa.table(columns | {f"{PROBABILITY_PREFIX}{name}": probabilities[:, n] for n, name in enumerate(classes)})
