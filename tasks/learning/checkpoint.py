"""Checkpoints: complete, verified before they are loaded, and never unpickled.

The checkpoint of an epoch is a folder with `weights.safetensors` (the whole model, including normalisation),
`training.pt` (optimizer and schedule, plain tensors and numbers) and `checkpoint.json`, which holds everything else and
the SHA-256 of all three. It needs no generator states: order and augmentation come from generators seeded by (seed,
epoch, rank), and random numbers inside a model (dropout) from generators seeded by (seed, epoch, step, rank).
"""

import contextlib
import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ValidationError

from storage import commits, files, manifest, tables
from storage.manifest import File
from storage.uri import URI
from tasks.learning.epoch_metrics import EpochMetrics, best_epoch, metrics_of
from tasks.learning.numerics import Numerics

META = "checkpoint.json"
WEIGHTS = "weights.safetensors"
TRAINING = "training.pt"
FILES = (WEIGHTS, TRAINING, META)
"""In the order of writing: META is last, since it holds the digests of the others."""
TRAINING_IMAGES = "training-images"
"""Prefix of the file with the first training images, in an attempt and in a committed checkpoint."""


class Meta(BaseModel, frozen=True, extra="forbid"):
    """Everything in a checkpoint except tensors."""

    model: dict[str, Any]
    """The `ModelSpec`: architecture, image shape, class names, normalisation."""
    recipe: dict[str, Any]
    """The recipe it was trained by."""
    prepared: str
    """Fingerprint of the dataset it was trained on and, except in earlier versions, digests of the content of the
    dataset and of the initial weights."""
    parameters: dict[str, Any]
    """Parameters that decided the weights, as hashed in the fingerprint."""
    resolved: dict[str, Any]
    """Values to which `auto` was resolved: workers, device, precision, threads."""
    epoch: int
    step: int
    history: list[dict[str, float]]
    """One `EpochMetrics` per epoch so far."""
    numerics: tuple[Numerics, ...] | None = None
    """Numerics of all epochs so far, in order of first use; none in checkpoints of earlier versions."""
    set_aside: tuple[Numerics, ...] | None = None
    """Numerics of epochs of an earlier attempt from which this one did not resume; none in earlier versions."""
    sha256: dict[str, str]
    """SHA-256 of the other files and, under META, of all fields above."""

    @property
    def best_epoch(self) -> int:
        """Epoch with the lowest validation loss of those that have a checkpoint so far, the earliest of equals."""
        every, epochs = self.recipe.get("checkpoint_every", 1), self.recipe.get("epochs", 0)  # earlier versions: each
        return best_epoch([metrics_of(row) for row in self.history], every=every, epochs=epochs)

    @property
    def identity(self) -> str:
        """Digest of everything that decides the model's predictions; training times do not enter."""
        decisive = [self.model, self.resolved["precision"], self.sha256[WEIGHTS]]
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()

    def is_trained_on(self, prepared: str) -> bool:
        """Return whether a run on `prepared` may resume from it; earlier versions stored only the fingerprint."""
        return self.prepared in (prepared, prepared.partition(" ")[0])

    def signed(self) -> "Meta":
        """Return a copy with its own digest."""
        # Leave out unset fields: earlier versions computed the digest without them.
        left_out = {"sha256"} | {name for name in ("numerics", "set_aside") if getattr(self, name) is None}
        digest = hashlib.sha256(self.model_dump_json(exclude=left_out).encode()).hexdigest()
        return self.model_copy(update={"sha256": self.sha256 | {META: digest}})


class WrongResume(ValueError):
    """A checkpoint has another dataset, recipe or number of workers than the run that would resume from it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Copy of the state after an epoch; later training steps do not change it."""

    meta: Meta
    """Metadata, still without digests."""
    serialized: Callable[[], dict[str, bytes]]
    """Returns the content of WEIGHTS and TRAINING; it takes a while, and may run in any thread."""


def write(folder: URI, snapshot: Snapshot) -> None:
    """Write `snapshot` to `folder`; the checkpoint is complete once META, the last file, exists."""

    def stored(name: str, content: bytes) -> str:
        files.replace(folder.child(name), content)
        return hashlib.sha256(content).hexdigest()

    content = snapshot.serialized()
    with ThreadPoolExecutor() as pool:
        digests = dict(zip(content, pool.map(stored, content.keys(), content.values()), strict=True))
    meta = snapshot.meta.model_copy(update={"sha256": digests}).signed()
    files.replace(folder.child(META), meta.model_dump_json(indent=1).encode())


def attempts(scratch: URI) -> list[int]:
    """Return the numbers of the attempts that left files in `scratch`, ascending."""
    names = [name.removeprefix("attempt-") for name in files.children(scratch) if name.startswith("attempt-")]
    return sorted(int(name) for name in names if name.isdigit())


def discard_others(scratch: URI, *, prepared: str) -> int:
    """Delete the attempts that have a checkpoint trained on something other than `prepared`; return their number."""
    others = [attempt for attempt in attempts(scratch) if not _are_trained_on(prepared, scratch, attempt)]
    for attempt in others:
        files.remove(scratch.child(f"attempt-{attempt}"))
    return len(others)


def _are_trained_on(prepared: str, scratch: URI, attempt: int) -> bool:
    folder = scratch.child(f"attempt-{attempt}")
    for name in files.children(folder):
        if name.startswith("epoch-"):
            with contextlib.suppress(FileNotFoundError, ValidationError):  # incomplete
                meta = Meta.model_validate_json(files.read(folder.child(f"{name}/{META}")))
                if meta == meta.signed() and not meta.is_trained_on(prepared):
                    return False
    return True


def complete_checkpoints(scratch: URI) -> Iterator[tuple[URI, Meta]]:
    """Yield the complete checkpoints of all attempts whose best epoch has one too, the latest epoch first."""
    found = [
        (int(name.removeprefix("epoch-")), attempt)
        for attempt in attempts(scratch)
        for name in files.children(scratch.child(f"attempt-{attempt}"))
        if name.startswith("epoch-")
    ]
    for epoch, attempt in sorted(found, reverse=True):
        uri = scratch.child(f"attempt-{attempt}/epoch-{epoch:04d}")
        meta = verified(uri)
        if meta is not None and meta.epoch == epoch and of_epoch(scratch, meta.best_epoch, before=meta) is not None:
            yield uri, meta


def of_epoch(scratch: URI, epoch: int, *, before: Meta) -> URI | None:
    """Find a complete checkpoint of `epoch` that the checkpoint `before` descends from, or an equal one.

    Any attempt will do: attempts with the same numerics compute the same, and others have another history.
    """
    for attempt in reversed(attempts(scratch)):
        uri = scratch.child(f"attempt-{attempt}/epoch-{epoch:04d}")
        meta = verified(uri)
        if meta is not None and _history(meta) == _history(before)[: meta.epoch]:
            return uri
    return None


def _history(meta: Meta) -> list[EpochMetrics]:
    return [metrics_of(row) for row in meta.history]  # comparison ignores measured times


def write_training_images(attempt: URI, table: pa.Table) -> File:
    """Write the first training images of `attempt`, a table made by `images.to_table`; return the manifest entry."""
    content = tables.encode(table)
    return commits.write_file(attempt, f"{TRAINING_IMAGES}.parquet", content, split="train", rows=table.num_rows)


def find_training_images(scratch: URI) -> tuple[URI, File] | None:
    """Return the latest attempt with complete first training images, and their entry; none if there is no such attempt.

    An attempt writes them only if it starts at the first epoch, so it then used nothing of earlier attempts.
    """
    for number in reversed(attempts(scratch)):
        attempt = scratch.child(f"attempt-{number}")
        for name in files.children(attempt):
            with contextlib.suppress(manifest.Damaged):  # a link out of the attempt
                if name.startswith(TRAINING_IMAGES) and (entry := tables.entry(attempt, name, split="train")):
                    return attempt, entry
    return None


def verified(uri: URI) -> Meta | None:
    """Verify every byte of the checkpoint in folder `uri`; return its metadata, or none if a byte is wrong."""
    return found[0] if (found := _opened(uri)) else None


def _opened(uri: URI) -> tuple[Meta, dict[str, bytes]] | None:
    if not all(uri.child(name).lies_in(uri.parent.parent) for name in FILES):  # a link out of the attempts
        return None
    try:
        meta = Meta.model_validate_json(files.read(uri.child(META)))
        content = {name: files.read(uri.child(name)) for name in (WEIGHTS, TRAINING)}
    except (FileNotFoundError, ValidationError):
        return None
    found = {name: hashlib.sha256(data).hexdigest() for name, data in content.items()}
    is_right = meta == meta.model_copy(update={"sha256": found}).signed()
    return (meta, content) if is_right else None


def checked(uri: URI) -> tuple[Meta, dict[str, bytes]]:
    """Load a checkpoint that was verified before; raises `RuntimeError` if its bytes are wrong now."""
    found = _opened(uri)
    if found is None:
        raise RuntimeError(f"the checkpoint {uri} changed after it was selected; run again to select another")
    return found


def check_same(meta: Meta, *, prepared: str, about: dict[str, Any]) -> None:
    """Raise `WrongResume` unless a run on `prepared` with `about` may resume from a checkpoint with `meta`."""
    pairs: list[tuple[str, Any, Any]] = []
    if not meta.is_trained_on(prepared):
        pairs.append(("prepared dataset", meta.prepared, prepared))
    for group, was in (("parameters", meta.parameters), ("resolved", meta.resolved)):
        pairs += [(name, was.get(name), about[group].get(name)) for name in sorted(was.keys() | about[group].keys())]
    # Numerics contain device and precision too; `resume.choose` compares those.
    compared = ("device", "precision") if meta.numerics and about.get("numerics") else ()
    for name, before, now in pairs:
        if before != now and name not in compared:
            raise WrongResume(
                f"{name} was {before!r} in the interrupted run but is {now!r} now; use the earlier value, or train "
                "again with --refresh"
            )
