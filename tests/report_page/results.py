"""Committed results of a run that never ran: all that a report is made from, in a second and without Ray."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from storage import tables
from storage.decision import Decision
from tasks.evaluate import write_evaluation
from tasks.images import row_tables
from tasks.learning import images, recipes
from tasks.planning import make_plan
from tasks.planning.plan import Plan
from tasks.promotion.gate import judge, resolved
from tests import committed
from tests.report_page.test_report_page import fake_history

_CLASSES = tuple("0123456789")
_ROWS = {"train": 40, "validation": 20, "test": 400}


def commit_results(folder: Path) -> tuple[Plan, Decision]:
    """Commit a raw and a prepared dataset, a checkpoint, predictions and their evaluation below `folder`."""
    plan = make_plan.make_plan(storage=str(folder), recipe=recipes.load("mnist-sample-resnet18"))
    generator = np.random.default_rng(0)
    sources = [source_of("images.gz", 8 * "0123abcd"), source_of("labels.gz", 8 * "4567cdef")]
    left_out = [{"reason": "not images or Parquet, by their file names", "count": 1, "first": ["notes.txt"]}]
    class_counts = {split: dict.fromkeys(_CLASSES, count // 10) for split, count in _ROWS.items()}
    about: dict[str, Any] = {"notice": "a sample", "class_counts": class_counts}
    assert plan.download
    committed.commit(plan.download.target, "files", sources=sources)
    committed.commit(
        plan.preprocess.raw, "raw", parents={"files": plan.download.target}, sources=sources, left_out=left_out, **about
    )
    rows = {split: _images(count, generator) for split, count in _ROWS.items()}
    named = pd.concat(pd.DataFrame({"split": split, "id": table["id"].to_numpy()}) for split, table in rows.items())
    digests = row_tables.write_digests(plan.preprocess.target, named, generator.bytes(16 * len(named)))
    committed.commit(
        plan.preprocess.target,
        "prepared",
        [
            *(tables.write_part(plan.preprocess.target, table, split=split, index=0) for split, table in rows.items()),
            digests,
        ],
        parents={"raw": plan.preprocess.raw},
        schema=tables.describe(rows["test"].schema),
        quarantined={"label out of range": 2},
        **about,
    )
    trained: dict[str, Any] = {"history": fake_history(4), "best_epoch": 3, "seconds": 70.8, "temperature": 1.25}
    committed.commit(plan.train.target, "checkpoint", parents={"prepared": plan.preprocess.target}, **trained)
    labels = rows["test"]["label"].to_numpy()
    scores = generator.normal(0, 1.2, (len(labels), len(_CLASSES)))
    scores[np.arange(len(labels)), labels] += 5
    probabilities = (np.exp(scores) / np.exp(scores).sum(1, keepdims=True)).astype(np.float32)
    predicted = committed.predictions(labels, probabilities, _CLASSES)
    parents = {"checkpoint": plan.train.target, "dataset": plan.preprocess.target}
    committed.commit_rows(plan.predict.target, "predictions", predicted, parents=parents)
    write_evaluation(plan.evaluate)
    gate = resolved(plan.recipe.gate, plan.train.target)
    decision = judge(plan.train.target, plan.evaluate.target, [], None, gate)
    return plan, decision.made_by("ada, run mnist-sample-resnet18 epochs=4 learning_rate=0.002")


def source_of(name: str, sha256: str) -> dict[str, str]:
    return {"name": name, "sha256": sha256, "url": f"https://mirror.example/{name}"}


def _images(count: int, generator: np.random.Generator) -> pa.Table:
    pixels = generator.integers(0, 256, (count, 28, 28, 1), dtype=np.uint8)
    ids = np.arange(count)
    return images.to_table(ids, pixels, ids % len(_CLASSES), classes=_CLASSES)
