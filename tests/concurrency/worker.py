"""One of the contending processes: it takes its steps in a random order and notes the outcome of each."""

import dataclasses
import hashlib
import json
import os
import random
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from storage import commits, files, manifest, registry
from storage.decision import Decision
from storage.manifest import Manifest
from storage.registry import Superseded
from storage.uri import URI, CheckpointURI, EvaluationURI, Root

MODEL = "contended"
"""Registered model on which all decide."""
_WEIGHTS = {"commit": 24, "read": 18, "decide": 24}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Spec:
    """Parameters of one worker process."""

    root: str
    log: Path
    """Where outcomes go, a JSON line each; the worker that takes the place of a killed one goes on after its end."""
    seed: int
    steps: int
    environment: Mapping[str, str]
    """How to reach S3."""


def place(root: URI, number: int) -> URI:
    """Return where the dataset with that number is committed, by whoever is first."""
    return root.child(f"datasets/raw/data-{number:012x}")


def digest(committed: Manifest) -> str:
    """Return a digest of all that a manifest says."""
    return hashlib.sha256(committed.to_json()).hexdigest()


def work(spec: Spec) -> None:
    """Take the steps that no earlier process has begun."""
    os.environ.update(spec.environment)
    os.fsync = lambda fd: None  # nothing here takes power away
    begun = [json.loads(line)["step"] for line in spec.log.read_text().splitlines()] if spec.log.exists() else []
    for number in range(max(begun, default=-1) + 1, spec.steps):
        _Worker(spec, number).take_step()


class _Worker:
    def __init__(self, spec: Spec, number: int) -> None:
        self._spec = spec
        self._root = Root(spec.root)
        self._number = number
        self._chance = random.Random(f"{spec.seed} {spec.log.name} {number}")
        self._id = f"{spec.log.stem}-{number}"
        """Unlike that of any other step."""

    def take_step(self) -> None:
        """Note that the step begins, take it, and note what it must not raise."""
        (verb,) = self._chance.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))
        self._note(begun=verb)
        try:
            getattr(self, f"_{verb}")()
        except Exception as error:
            self._note(error=f"{verb}: {type(error).__name__}: {error}")

    def _note(self, **outcome: Any) -> None:
        with self._spec.log.open("ab", buffering=0) as log:
            log.write(json.dumps({"step": self._number, **outcome}).encode() + b"\n")

    def _rest(self) -> None:
        time.sleep(self._chance.choice((0.0, 0.0, 0.005, 0.02)))

    def _newest(self) -> int:
        names = files.children(self._root.child("datasets/raw"))
        return max((int(name.rpartition("-")[2], 16) for name in names), default=0)

    def _commit(self) -> None:
        """Commit where nobody has yet, as far as this worker sees: all come to the same place."""
        newest = self._newest()
        uri = place(self._root, newest + 1 if manifest.find(place(self._root, newest)) else newest)
        self._rest()
        file = commits.write_file(uri, "train/part-00000.bin", self._id.encode(), split="train", rows=1)
        committed = commits.commit(uri, kind="raw", parents={}, parameters={"by": self._id}, listed=[file])
        self._note(dataset=uri, digest=digest(committed))

    def _read(self) -> None:
        uri = place(self._root, max(self._newest() - self._chance.choice((0, 1, 5)), 0))
        if manifest.is_committed(uri):
            self._note(dataset=uri, digest=digest(manifest.verify(uri)))

    def _decide(self) -> None:
        latest = registry.latest(self._root, MODEL)
        if latest:
            self._note(decision=latest.number, reason=latest.reason)
        number = latest.number + 1 if latest else 1
        self._rest()
        try:
            registry.append(self._root, MODEL, _decision(number, self._id))
        except Superseded:
            self._note(refused=self._id)
        else:
            self._note(decision=number, reason=self._id)


def _decision(number: int, reason: str) -> Decision:
    checkpoint = CheckpointURI(f"/checkpoints/model-{number:012x}")
    return Decision(
        number=number,
        champion=checkpoint,
        challenger=checkpoint,
        evaluation=EvaluationURI("/evaluations/model-1"),
        promoted=True,
        reason=reason,
    )
