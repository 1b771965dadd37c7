"""Small committed results of every kind, as a run leaves them, and the decisions on them."""

import dataclasses
import hashlib
import json
import os
from typing import Any

import pyarrow as pa

from storage import files, manifest, registry, tables
from storage.decision import Decision
from storage.kinds import KINDS, RUNS
from storage.uri import URI, CheckpointURI, EvaluationURI, Root
from tests import committed

DATA = "digits"


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
    folder = RUNS if kind == "scratch" else KINDS[kind].folder
    return root.child(f"{folder}/{name}-{digest}")


def write_part(uri: URI, *, split: str = "test", rows: int = 3, index: int = 0) -> manifest.File:
    """One small part of a table."""
    return tables.write_part(uri, pa.table({"id": list(range(rows))}), split=split, index=index)


def commit(root: Root, kind: str, name: str, *, accuracy: float = 0.987654321, **parents: URI) -> URI:
    """A committed result of two parts, nine rows in two splits."""
    uri = place(root, kind, name)
    listed = [write_part(uri, split="train", rows=6), write_part(uri)]
    parameters = {"data": DATA} if kind == "raw" else {"seed": 1}
    scores: dict[str, Any] = {"test_accuracy": accuracy} if kind == "evaluation" else {}
    committed.commit(uri, kind, listed, parents=parents, parameters=parameters, **scores)
    return uri


def run(root: Root, name: str, *, raw: URI | None = None, accuracy: float = 0.987654321) -> Model:
    """What a run called `name` commits, on a raw dataset of its own unless one is given."""
    raw = raw or commit(root, "raw", name)
    prepared = commit(root, "prepared", name, raw=raw)
    checkpoint = CheckpointURI(commit(root, "checkpoint", name, prepared=prepared))
    predictions = commit(root, "predictions", name, checkpoint=checkpoint, dataset=prepared)
    evaluation = EvaluationURI(commit(root, "evaluation", name, accuracy=accuracy, predictions=predictions))
    report = commit(root, "report", name, checkpoint=checkpoint, predictions=predictions, evaluation=evaluation)
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
