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
from storage.kinds import CheckpointURI, EvaluationURI
from storage.manifest import Manifest
from storage.registry import Superseded
from storage.uri import URI, Root
from tests import committed

MODEL = "contended"
"""Registered model on which all decide."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Spec:
    """Parameters of one worker process."""

    root: Root
    log: Path
    """Where outcomes go, a JSON line each; the worker that takes the place of a killed one goes on after its end."""
    seed: int
    steps: int
    environment: Mapping[str, str]
    """How to reach S3."""

    def note(self, step: int, **outcome: Any) -> None:
        """Append the outcome of a step to the log; the kernel writes a line as a whole."""
        with self.log.open("ab", buffering=0) as log:
            log.write(json.dumps({"step": step, **outcome}).encode() + b"\n")


def digest(committed: Manifest) -> str:
    """Return a digest of all that a manifest says."""
    return hashlib.sha256(committed.to_json()).hexdigest()


def work(spec: Spec) -> None:
    """Take the steps that no earlier process has begun."""
    os.environ.update(spec.environment)
    os.fsync = lambda fd: None  # nothing here takes power away
    begun = [json.loads(line)["step"] for line in spec.log.read_text().splitlines()] if spec.log.exists() else []
    for step in range(max(begun, default=-1) + 1, spec.steps):
        chance = random.Random(f"{spec.seed} {spec.log.name} {step}")
        (verb,) = chance.choices((_commit, _read, _decide), weights=(24, 18, 24))
        spec.note(step, begun=verb.__name__)
        try:
            spec.note(step, **verb(spec.root, f"{spec.log.stem}-{step}", chance))
        except Exception as error:
            spec.note(step, error=f"{verb.__name__}: {type(error).__name__}: {error}")


def _commit(root: Root, name: str, chance: random.Random) -> dict[str, Any]:
    """Commit where nobody has yet, as far as this worker sees: all try the same URI."""
    newest = _newest(root)
    uri = _dataset(root, newest + 1 if manifest.find(_dataset(root, newest)) else newest)
    _rest(chance)
    file = commits.write_file(uri, "train/part-00000.bin", name.encode(), split="train", rows=1)
    made = committed.commit(uri, "raw", [file], parameters={"by": name})
    return {"dataset": uri, "digest": digest(made)}


def _read(root: Root, name: str, chance: random.Random) -> dict[str, Any]:
    uri = _dataset(root, max(_newest(root) - chance.choice((0, 1, 5)), 0))
    return {"dataset": uri, "digest": digest(manifest.verify(uri))} if manifest.is_committed(uri) else {}


def _decide(root: Root, name: str, chance: random.Random) -> dict[str, Any]:
    latest = registry.latest(root, MODEL)
    number, seen = (latest.number + 1, {latest.number: latest.reason}) if latest else (1, {})
    _rest(chance)
    checkpoint = CheckpointURI(f"/checkpoints/model-{number:012x}")
    values: dict[str, Any] = {"champion": checkpoint, "challenger": checkpoint, "promoted": True, "reason": name}
    try:
        registry.append(
            root, MODEL, Decision(number=number, evaluation=EvaluationURI("/evaluations/model-1"), **values)
        )
    except Superseded:
        return {"decisions": seen, "refused": name}
    return {"decisions": seen | {number: name}}


def _dataset(root: Root, number: int) -> URI:
    return root.child(f"datasets/raw/data-{number:012x}")


def _newest(root: Root) -> int:
    names = files.children(root.child("datasets/raw"))
    return max((int(name.rpartition("-")[2], 16) for name in names), default=0)


def _rest(chance: random.Random) -> None:
    time.sleep(chance.choice((0.0, 0.0, 0.005, 0.02)))
