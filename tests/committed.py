"""Results that no stage made: any files, with statistics such as the stage records; and small ones of whole runs."""

import dataclasses
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa

from storage import commits, files, registry, tables
from storage.decision import Decision
from storage.kinds import KINDS, PROBABILITY_PREFIX, CheckpointURI, EvaluationURI
from storage.manifest import File, Manifest, Parent
from storage.statistics import Resolved, SplitRule, Statistics
from storage.uri import URI, Root
from tasks.learning import recipes

HARDWARE = "fp32 on cpu: EPYC, AVX2, avx, torch 2.14.1"
SOURCE = {"name": "images.gz", "sha256": "ab" * 32, "md5": "cd" * 16, "url": "https://mirror.example/images.gz"}
RESOLVED = Resolved(
    batch_size=128, class_weights="none", device="cpu", loader="resident", precision="fp32", threads=1, workers=1
)
_SPLIT: dict[str, Any] = {"split_seed": 0, "validation_fraction": 0.1, "group": "none", "store": "pixels"}
ENDED: dict[str, Any] = {"split": SplitRule(**_SPLIT), "seconds": 7.5}
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
    "prepared": _IMAGES | _CHANNELS | _COPIES | {"quarantined": {}, "split": _SPLIT},
    "embeddings": {
        "notice": None,
        "model": _MODEL,
        "dimensions": 64,
        "computed": 100,
        "copied": 0,
        "hardware": (),
        "seconds": 1,
    },
    "checkpoint": _COMPUTED | _TRAINED | ENDED | {"split": _SPLIT, "recipe": _RECIPE},
    "predictions": _COMPUTED | {"predicted": {}, "unpredicted": 0, "reused_parts": 0, "notice": None},
    "evaluation": _SCORES | {"test_loss": 1.0, "expected_calibration_error": 0.0, "num_rows": 100},
    "report": _NAMES | {"changes": {}, "settings": {"epochs": 3}, "seconds": 75.0},
    "export": _SCORES | {"proof": {"rows": 100, "largest_difference": 1e-7}},
    "audit": {"rows": 100, "notice": None},
}
DATA = "digits"
"""The registered model of the runs."""
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class Model:
    """All that one run leaves."""

    raw: URI
    prepared: URI
    checkpoint: CheckpointURI
    predictions: URI
    evaluation: EvaluationURI
    report: URI

    def all(self) -> set[URI]:
        """Every URI."""
        return set(vars(self).values())

    def lineage(self) -> set[URI]:
        """The checkpoint and what it was made from."""
        return {self.raw, self.prepared, self.checkpoint}


def place(root: Root, kind: str, name: str) -> URI:
    """Where a result called `name` lies."""
    digest = hashlib.sha256(f"{kind} {name}".encode()).hexdigest()[:12]
    return root.child(f"{KINDS[kind].folder}/{name}-{digest}")


def write_part(uri: URI, *, split: str = "test", rows: int = 3, index: int = 0) -> File:
    """One small part of a table."""
    return tables.write_part(uri, pa.table({"id": list(range(rows))}), split=split, index=index)


def result(root: Root, kind: str, name: str, **parents: URI) -> URI:
    """A committed result of two parts, nine rows in two splits."""
    uri = place(root, kind, name)
    listed = [write_part(uri, split="train", rows=6), write_part(uri)]
    parameters = {"data": DATA} if kind == "raw" else {"seed": 1}
    commit(uri, kind, listed, parents=parents, parameters=parameters)
    return uri


def run(root: Root, name: str, *, raw: URI | None = None) -> Model:
    """What a run called `name` commits, on a raw dataset of its own unless one is given."""
    raw = raw or result(root, "raw", name)
    prepared = result(root, "prepared", name, raw=raw)
    checkpoint = CheckpointURI(result(root, "checkpoint", name, prepared=prepared))
    predictions = result(root, "predictions", name, checkpoint=checkpoint, dataset=prepared)
    evaluation = EvaluationURI(result(root, "evaluation", name, predictions=predictions))
    report = result(root, "report", name, checkpoint=checkpoint, predictions=predictions, evaluation=evaluation)
    return Model(
        raw=raw, prepared=prepared, checkpoint=checkpoint, predictions=predictions, evaluation=evaluation, report=report
    )


def decide(root: Root, champion: Model, *, challenger: Model | None = None, data: str = DATA) -> None:
    """Record that `champion` is in charge of `data` from now on; without a challenger it is the one promoted."""
    judged = challenger or champion
    latest = registry.latest(root, data)
    decision = Decision(
        number=latest.number + 1 if latest else 1,
        champion=champion.checkpoint,
        challenger=judged.checkpoint,
        evaluation=judged.evaluation,
        promoted=judged is champion,
        reason="it is better" if judged is champion else "it is worse",
    )
    registry.append(root, data, decision)


def promote(root: Root, name: str, checkpoint: CheckpointURI, *, evaluation: str = "") -> Decision:
    """Record the first decision on `name`: `checkpoint` is its champion, by nothing but this."""
    values: dict[str, Any] = {"evaluation": evaluation, "reason": "", "gate": {}, "metrics": {}}
    decision = Decision(number=1, champion=checkpoint, challenger=checkpoint, promoted=True, **values)
    registry.append(root, name, decision)
    return decision


def write_scratch(root: Root, target: URI) -> URI:
    """What an ended attempt at `target` leaves: the spec of its job, and a file of its own."""
    scratch = root.child(f"runs/{target.name}")
    spec = {"runs": scratch, "recipe": {"training": {"epochs": 4}}}
    files.put(scratch.child(f"train-{64 * '0'}.json"), json.dumps(spec).encode())
    files.put(scratch.child("attempt-1/weights"), b"weights")
    return scratch


def listing(root: Root) -> dict[str, bytes]:
    """Every file below `root` with its content."""
    return {entry.path: files.read(root.child(entry.path)) for entry in files.walk(root)}


def set_age(uri: URI, *, days: float) -> None:
    """Make every file below `uri`, on a disk, look as old as that."""
    for entry in files.walk(uri):
        path = uri.child(entry.path)
        written = os.stat(path).st_mtime - days * 24 * 3600
        os.utime(path, (written, written))
