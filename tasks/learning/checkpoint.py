"""Checkpoints: complete, verified before they are loaded, and never unpickled.

The checkpoint of an epoch is a folder with `weights.safetensors` (the whole model, including normalization),
`training.safetensors` (optimizer and schedule: tensors, and JSON beside them) and `checkpoint.json`, which holds
everything else and the SHA-256 of all three. It needs no generator states: all generators are seeded by seed, epoch and
rank, those inside a model (dropout) also by the step.
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from pydantic import BaseModel, ValidationError

from storage import files
from storage.manifest import JSON
from storage.statistics import EpochMetrics, ModelSpec, Resolved
from storage.uri import URI
from tasks.learning.epoch_metrics import best_epoch, is_last

META = "checkpoint.json"
WEIGHTS = "weights.safetensors"
TRAINING = "training.safetensors"
FILES = (WEIGHTS, TRAINING, META)
"""In the order of writing: META is last, since it holds the digests of the others."""


class Meta(BaseModel, frozen=True, extra="forbid"):
    """Everything in a checkpoint except tensors."""

    model: ModelSpec
    recipe: JSON
    """The recipe it was trained by."""
    prepared: str
    """Fingerprint of the dataset it was trained on, and digests of its content and of the initial weights."""
    parameters: JSON
    """Parameters that decided the weights, as hashed in the fingerprint."""
    resolved: Resolved
    epoch: int
    step: int
    history: tuple[EpochMetrics, ...]
    """Of all epochs so far; a comparison ignores measured times."""
    hardware: tuple[str, ...] = ()
    """Hardware and versions of all epochs so far, in order of first use."""
    sha256: dict[str, str]
    """SHA-256 of the other files and, under META, of all fields above."""

    @property
    def best_epoch(self) -> int:
        """Epoch with the lowest validation loss so far, the earliest of equals."""
        return best_epoch(self.history)

    @property
    def is_last(self) -> bool:
        """Whether the training ends with this epoch."""
        return is_last(self.history, self.recipe["training"])

    @property
    def identity(self) -> str:
        """Digest of everything that decides the model's predictions; training times do not enter."""
        decisive = [dataclasses.asdict(self.model), self.resolved.precision, self.sha256[WEIGHTS]]
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def signed(self) -> "Meta":
        """Return a copy with its own digest."""
        digest = hashlib.sha256(self.model_dump_json(exclude={"sha256"}).encode()).hexdigest()
        return self.model_copy(update={"sha256": self.sha256 | {META: digest}})


class WrongResume(ValueError):
    """A checkpoint has another dataset, recipe or number of workers than the run that would resume from it."""


def write(folder: URI, meta: Meta, contents: Mapping[str, bytes]) -> None:
    """Write the `contents` of WEIGHTS and TRAINING, then `meta` with all digests: META completes the checkpoint."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(files.put, map(folder.child, contents), contents.values()))
    files.put(folder.child(META), sealed(meta, contents).model_dump_json(indent=1).encode())


def sealed(meta: Meta, contents: Mapping[str, bytes]) -> Meta:
    """Return `meta` with the digests of the `contents` of WEIGHTS and TRAINING, and its own."""
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    return meta.model_copy(update={"sha256": digests}).signed()


def read_meta(uri: URI) -> Meta | None:
    """Read META; none if it is missing or damaged."""
    with contextlib.suppress(FileNotFoundError, ValidationError):
        meta = Meta.model_validate_json(files.read(uri.child(META)))
        return meta if meta == meta.signed() else None
    return None


def fetch(uri: URI, meta: Meta, folder: Path | None) -> bool:
    """Copy a checkpoint piece by piece to the local `folder`, if any; return whether its bytes are those of `meta`."""
    try:
        digests = {name: _copy(uri.child(name), folder and folder / name) for name in (WEIGHTS, TRAINING)}
    except FileNotFoundError:
        return False
    if folder:
        (folder / META).write_text(meta.model_dump_json())
    return meta == meta.model_copy(update={"sha256": digests}).signed()


def _copy(uri: URI, path: Path | None) -> str:
    digest = hashlib.sha256()
    with path.open("wb") if path else contextlib.nullcontext() as copy:
        for piece in files.pieces(uri):
            digest.update(piece)
            if copy:
                copy.write(piece)
    return digest.hexdigest()
