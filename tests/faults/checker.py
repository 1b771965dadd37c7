"""Conditions that must hold at the end of a run, whatever happened before."""

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from storage import files, manifest, tables
from storage.uri import URI
from tests.faults.harness import CANARY, NUM_TEST, Golden

STATES = {
    *("Scheduled", "Late", "AwaitingConcurrencySlot", "Pending", "Submitting", "Running", "AwaitingRetry", "Retrying"),
    *("Completed", "Promoted", "Rejected", "Unchanged", "NothingNew", "Failed", "Crashed", "GivenUp"),
    *("Cancelling", "Cancelled"),
}
"""Names that a run's or task's state may have."""


def violations(
    root: URI, result: dict[str, Any] | None, golden: Golden, *, secrets: list[str], folder: Path
) -> Iterator[str]:
    """Yield one line for each difference from an undisturbed run; `result` None: the case expects no result."""
    if result is not None:
        yield from _wrong_results(result, golden)
    yield from _damaged(root)
    yield from _secrets(root, folder, [CANARY, *secrets])
    yield from illegal_states(folder)


def _wrong_results(result: dict[str, Any], golden: Golden) -> Iterator[str]:
    checkpoint, predictions = (URI(result["uris"][name]) for name in ("checkpoint", "predictions"))
    weights = next(file.sha256 for file in manifest.load(checkpoint).files if file.path.startswith("weights"))
    if weights != golden.weights:
        yield "the weights differ"
    parts = [[file.path, file.sha256, file.rows] for file in manifest.load(predictions).files]
    if parts != golden.predictions:
        yield "the predictions differ"
    ids = np.sort(tables.read_split(predictions, "test", columns=["id"])["id"].to_numpy())
    if not np.array_equal(ids, np.arange(NUM_TEST)):
        yield f"{len(ids)} rows were predicted, not each of {NUM_TEST} once"
    if result["metrics"] != golden.metrics:
        yield "the metrics differ"


def _damaged(root: URI) -> Iterator[str]:
    for path in (entry.path for entry in files.walk(root)):
        if path.endswith("/" + manifest.NAME):
            try:
                manifest.verify(root.child(path.removesuffix("/" + manifest.NAME)))
            except (manifest.Damaged, FileNotFoundError) as error:
                yield str(error)


def _secrets(root: URI, folder: Path, secrets: list[str]) -> Iterator[str]:
    """Every file in storage, every log, and Prefect's database with its journal."""
    stored = ((entry.path, files.read(root.child(entry.path))) for entry in files.walk(root))
    local = ((str(path), path.read_bytes()) for path in folder.rglob("*") if path.is_file())
    for content in (stored, local):
        for name, content_bytes in content:
            if any(secret.encode() in content_bytes for secret in secrets):
                yield f"a secret stands in {name}"


def illegal_states(folder: Path) -> Iterator[str]:
    for database in folder.rglob("*.db"):
        with contextlib.closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
            for table in ("flow_run", "task_run"):
                for (name,) in connection.execute(f"SELECT DISTINCT state_name FROM {table}"):
                    if name is not None and name not in STATES:
                        yield f"a {table.replace('_', ' ')} is in state {name!r}"
