"""Checkpoints: complete, checked before they are loaded, and never unpickled.

One epoch's checkpoint is a folder of `weights.safetensors` (the whole model, normalisation included), `training.pt`
(optimizer and schedule, plain tensors and numbers) and `checkpoint.json`, which says everything else and holds the
SHA-256 of all three. Generator states need no place in it: every epoch draws from generators seeded by
(seed, epoch, rank).
"""

import csv
import dataclasses
import hashlib
import io
import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from pydantic import BaseModel, ConfigDict, ValidationError

from storage import files, manifest, tables
from storage.manifest import File
from storage.uri import URI, CheckpointURI

META = "checkpoint.json"
WEIGHTS = "weights.safetensors"
TRAINING = "training.pt"
FILES = (WEIGHTS, TRAINING, META)
"""The last one is written last: it holds the digests of the others."""
_TRAINING_IMAGES = "training-images"
"""Of an attempt and of a committed checkpoint: how the name of the file of its first training images begins."""


class Meta(BaseModel):
    """All of a checkpoint but tensors."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: dict[str, Any]
    """The `ModelSpec`: architecture, image shape, class names, normalisation."""
    recipe: dict[str, Any]
    """The recipe it was trained by."""
    prepared: str
    """Fingerprint of the dataset it was trained on."""
    parameters: dict[str, Any]
    """What decided the weights, as hashed in the fingerprint."""
    resolved: dict[str, Any]
    """What `auto` became: workers, device, precision, threads."""
    epoch: int
    step: int
    history: list[dict[str, float]]
    """One `EpochMetrics` an epoch so far."""
    sha256: dict[str, str]
    """Of the other files, and under this one's name that of everything above."""

    @property
    def best_epoch(self) -> int:
        """The epoch with the lowest validation loss so far, the earliest of equals."""
        return int(min(self.history, key=lambda metrics: (metrics["validation_loss"], metrics["epoch"]))["epoch"])

    def signed(self) -> "Meta":
        """The same with its own digest."""
        digest = hashlib.sha256(self.model_dump_json(exclude={"sha256"}).encode()).hexdigest()
        return self.model_copy(update={"sha256": self.sha256 | {META: digest}})


class WrongResume(ValueError):
    """A checkpoint belongs to another dataset, recipe or scale than the run that would go on from it."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The state after an epoch as it will be stored; what the training does afterwards does not change it."""

    meta: Meta
    """Without digests."""
    weights: bytes
    training: bytes


def write(folder: URI, snapshot: Snapshot) -> None:
    """Write `snapshot` to `folder`, which is whole once the last of its files is there."""

    def stored(name: str, content: bytes) -> str:
        files.replace(folder.child(name), content)
        return hashlib.sha256(content).hexdigest()

    content = {WEIGHTS: snapshot.weights, TRAINING: snapshot.training}
    with ThreadPoolExecutor() as pool:
        digests = dict(zip(content, pool.map(stored, content.keys(), content.values()), strict=True))
    meta = snapshot.meta.model_copy(update={"sha256": digests}).signed()
    files.replace(folder.child(META), meta.model_dump_json(indent=1).encode())


def attempts(scratch: URI) -> list[int]:
    """Numbers of the attempts that left something in `scratch`, ascending."""
    names = [name.removeprefix("attempt-") for name in files.children(scratch) if name.startswith("attempt-")]
    return sorted(int(name) for name in names if name.isdigit())


def newest(scratch: URI) -> URI | None:
    """The checkpoint of the latest epoch of any attempt that is whole and whose best epoch is there whole as well."""
    found = [
        (int(name.removeprefix("epoch-")), attempt)
        for attempt in attempts(scratch)
        for name in files.children(scratch.child(f"attempt-{attempt}"))
        if name.startswith("epoch-")
    ]
    for epoch, attempt in sorted(found, reverse=True):
        uri = scratch.child(f"attempt-{attempt}/epoch-{epoch:04d}")
        meta = verified(uri)
        if meta is not None and meta.epoch == epoch and of_epoch(scratch, meta.best_epoch) is not None:
            return uri
    return None


def of_epoch(scratch: URI, epoch: int) -> URI | None:
    """A whole checkpoint of `epoch`, of whichever attempt: what they compute is equal bit by bit."""
    for attempt in reversed(attempts(scratch)):
        uri = scratch.child(f"attempt-{attempt}/epoch-{epoch:04d}")
        if verified(uri) is not None:
            return uri
    return None


def write_training_images(attempt: URI, table: pa.Table) -> File:
    """Write the first training images of `attempt`, a table as `images.to_table` makes it; returns its entry."""
    content = tables.encode(table)
    return manifest.write_file(attempt, f"{_TRAINING_IMAGES}.parquet", content, split="train", rows=table.num_rows)


def find_training_images(scratch: URI) -> tuple[URI, File] | None:
    """Return the latest attempt that holds whole training images, and their entry; none when no attempt does.

    A later attempt has its own only when it began at the first epoch: then nothing of the earlier ones was used.
    """
    for number in reversed(attempts(scratch)):
        attempt = scratch.child(f"attempt-{number}")
        for name in files.children(attempt):
            if name.startswith(_TRAINING_IMAGES):
                try:
                    entry = tables.entry(attempt, name, split="train")
                except manifest.Damaged:  # a link out of the attempt
                    entry = None
                if entry:
                    return attempt, entry
    return None


def training_images(uri: CheckpointURI, committed: manifest.Manifest) -> pa.Table | None:
    """Return the first training images of a committed checkpoint; none in those of earlier versions."""
    file = next((file for file in committed.files if file.path.startswith(_TRAINING_IMAGES)), None)
    return tables.read_part(uri, file) if file else None


def verified(uri: URI) -> Meta | None:
    """What the checkpoint in folder `uri` says of itself when every byte of it is right, else none."""
    found = _opened(uri)
    return found[0] if found else None


def _opened(uri: URI) -> tuple[Meta, dict[str, bytes]] | None:
    """The checkpoint in folder `uri` when every byte of it is right, else none.

    A link that leads out of the folder of all attempts makes it none as well.
    """
    if not all(uri.child(name).lies_in(uri.parent.parent) for name in FILES):
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
    """The same bytes that were found right before, or a `RuntimeError`."""
    found = _opened(uri)
    if found is None:
        raise RuntimeError(f"the checkpoint {uri} changed after it was chosen; run again to take another")
    return found


def threads_of(uri: URI) -> int:
    """With how many threads per worker the run that wrote this checkpoint computed; 0 where that does not matter."""
    return int(checked(uri)[0].resolved["threads"])


def check_same(meta: Meta, *, prepared: str, about: dict[str, Any]) -> None:
    """Raise `WrongResume` unless a run on `prepared` with `about` may go on from a checkpoint with `meta`."""
    pairs: list[tuple[str, Any, Any]] = [("prepared dataset", meta.prepared, prepared)]
    for group, was in (("parameters", meta.parameters), ("resolved", meta.resolved)):
        pairs += [(name, was.get(name), about[group].get(name)) for name in sorted(was.keys() | about[group].keys())]
    for name, before, now in pairs:
        if before != now:
            raise WrongResume(
                f"{name} was {before!r} in the interrupted run but is {now!r} now; give what it was, or train anew with"
                " --refresh"
            )


def commit(
    scratch: URI, target: CheckpointURI, *, prepared: URI, initial: URI | None = None, statistics: dict[str, Any]
) -> manifest.Manifest:
    """Commit the best epoch as `target`, with the whole history; `scratch` holds a checkpoint of the last epoch.

    Raises `RuntimeError` when that one is not whole: the same call of the job trains what is missing again.
    """
    last = newest(scratch)
    assert last is not None, "training ended without a checkpoint"
    final, _ = checked(last)
    if final.epoch != final.recipe["epochs"]:
        raise RuntimeError(f"the checkpoints after epoch {final.epoch} are damaged; run again to go on from there")
    best = of_epoch(scratch, final.best_epoch)
    assert best is not None, "the best epoch was there a moment ago"
    meta, content = checked(best)
    meta = meta.model_copy(update={"history": final.history}).signed()
    listed = [manifest.write_file(target, name, data) for name, data in content.items()]
    listed.append(manifest.write_file(target, META, meta.model_dump_json(indent=1).encode()))
    history = json.dumps(final.history, indent=1).encode()
    listed.append(manifest.write_file(target, "history.json", history))
    listed.append(manifest.write_file(target, "history.csv", _csv(final.history)))
    if found := find_training_images(scratch):
        attempt, file = found
        listed.append(manifest.write_file(target, f"{_TRAINING_IMAGES}.parquet", manifest.read_file(attempt, file)))
    return manifest.commit(
        target,
        kind="checkpoint",
        parents={"prepared": prepared} | ({"initial": initial} if initial else {}),
        parameters=final.parameters,
        listed=listed,
        statistics={
            "best_epoch": final.best_epoch,
            "history": final.history,
            "model": final.model,
            "resolved": final.resolved,
            "recipe": final.recipe,
            **statistics,
        },
    )


def _csv(history: list[dict[str, float]]) -> bytes:
    """Return `history` as RFC 4180 has it: a header, then one line an epoch, each ended by CRLF."""
    sink = io.StringIO(newline="")
    writer = csv.DictWriter(sink, fieldnames=list(history[0]))
    writer.writeheader()
    writer.writerows(row | {name: int(row[name]) for name in ("epoch", "step")} for row in history)
    return sink.getvalue().encode()
