"""Attempts at one training: which checkpoint is resumed, and what is committed; no torch, whose import takes seconds.

`runs/<target>/attempt-N/epoch-NNNN/` holds the checkpoint of an epoch. `attempt-0` holds checkpoints of a finished
training with fewer epochs (`continuing`).
"""

import contextlib
import dataclasses
import json
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from storage import commits, files, manifest
from storage.kinds import PREPARED, CheckpointURI
from storage.manifest import Manifest, Parent
from storage.statistics import CheckpointStatistics, EpochMetrics, SplitRule
from storage.uri import URI
from tasks.learning import checkpoint, hardware
from tasks.learning.checkpoint import META, TRAINING, WEIGHTS, Meta
from tasks.learning.epoch_metrics import best_epoch
from tasks.stages import Train

KEPT = "constant"
"""Folder in a training's scratch, and in its checkpoint, for the state at the end of the constant learning rate."""
CONTINUES = "continues.json"
"""File that says whose state a training began with."""
AddToModel = Callable[[bytes, Meta], tuple[bytes, Meta]]
"""Adds a part to a model: takes and returns the bytes of WEIGHTS, and what goes with them."""


def trained_on(stage: Train, prepared: Manifest) -> str:
    """Return the identity of the bytes that `stage` trains on and starts from, as its checkpoints record it."""
    initial = [manifest.load(uri).content for uri in (stage.initial, stage.weights) if uri]
    return " ".join([stage.prepared.fingerprint, prepared.content, *initial])


def numbers(scratch: URI) -> list[int]:
    """Return the numbers of the attempts that left files in `scratch`, ascending."""
    names = [name.removeprefix("attempt-") for name in files.children(scratch) if name.startswith("attempt-")]
    return sorted(int(name) for name in names if name.isdigit())


def new_attempt(scratch: URI) -> URI:
    """Create a new attempt's folder and return it; Ray Train's state of earlier attempts is never reused."""
    number = max(numbers(scratch), default=0) + 1
    token = json.dumps({"token": uuid.uuid4().hex}).encode()  # recognizes this attempt if a reply of S3 is lost
    while True:
        try:
            files.put(scratch.child(f"attempt-{number}/_attempt.json"), token, mode="create")
        except FileExistsError:
            number += 1
        else:
            return scratch.child(f"attempt-{number}")


def workers_before(stage: Train) -> int | None:
    """Return the number of workers of the epochs so far if `auto` chose it; None without such epochs.

    The weights depend on the number, and `auto` chooses it by the nodes that are there now.
    """
    newest = next(described(stage.scratch), None) if stage.workers is None else None
    return newest[1].resolved.workers if newest else None


def described(scratch: URI) -> Iterator[tuple[URI, Meta]]:
    """Yield the checkpoints of all attempts that have their META, the latest epoch first; reads nothing else."""
    epochs = [
        (int(name.removeprefix("epoch-")), attempt)
        for attempt in numbers(scratch)
        for name in files.children(scratch.child(f"attempt-{attempt}"))
        if name.startswith("epoch-")
    ]
    for epoch, attempt in sorted(epochs, reverse=True):
        uri = scratch.child(f"attempt-{attempt}/epoch-{epoch:04d}")
        meta = checkpoint.read_meta(uri)
        if meta is not None and meta.epoch == epoch:
            yield uri, meta


def fetch_newest(scratch: URI, folder: Path) -> tuple[URI, Meta] | None:
    """Fetch the newest complete checkpoint of any attempt whose best epoch has one too; return it, none without any."""
    for uri, meta in described(scratch):
        if checkpoint.fetch(uri, meta, folder) and (meta.best_epoch == meta.epoch or fetch_best(scratch, meta)):
            return uri, meta
    return None


def fetch_best(scratch: URI, meta: Meta, folder: Path | None = None) -> Meta | None:
    """Fetch a complete checkpoint of the best epoch that `meta` descends from, or an equal one, of any attempt."""
    return _fetch(scratch, meta.history[: meta.best_epoch], folder)


def _fetch(scratch: URI, history: Sequence[EpochMetrics], folder: Path | None) -> Meta | None:
    """Fetch a complete checkpoint with this `history`, of any attempt; return what it says, none if there is none."""
    for uri, meta in described(scratch):
        if meta.history == tuple(history) and checkpoint.fetch(uri, meta, folder):
            return meta
    return None


def keep(scratch: URI, history: Sequence[EpochMetrics]) -> None:
    """Keep the checkpoints after `history` and of its best epoch, for a training with more epochs."""
    for num_epochs in sorted({best_epoch(history), len(history)}):
        with tempfile.TemporaryDirectory() as name:
            if meta := _fetch(scratch, history[:num_epochs], Path(name)):
                content = {file: Path(name, file).read_bytes() for file in (WEIGHTS, TRAINING)}
                checkpoint.write(scratch.child(f"{KEPT}/epoch-{num_epochs:04d}"), meta, content)


def _kept(scratch: URI) -> Iterator[tuple[str, bytes]]:
    """Yield what the checkpoint of a finished training also has: what `keep` wrote, and whose state it began with."""
    with contextlib.suppress(FileNotFoundError):
        yield CONTINUES, files.read(scratch.child(f"attempt-0/{CONTINUES}"))
    for entry in files.walk(scratch.child(KEPT)):
        yield f"{KEPT}/{entry.path}", files.read(scratch.child(f"{KEPT}/{entry.path}"))


def commit(
    scratch: URI,
    target: CheckpointURI,
    *,
    parents: Mapping[str, URI | Parent],
    split: SplitRule,
    add: AddToModel | None = None,
    seconds: float,
) -> Manifest:
    """Commit the best epoch at `target`, with the whole history; the last epoch must have a checkpoint in `scratch`.

    `add` gives the model another part.

    Raises `RuntimeError` if one of the two is damaged; running the job again trains the missing epochs.
    """
    last = next(described(scratch), None)
    assert last is not None, "training ended without a checkpoint"
    _, final = last
    if not final.is_last:
        raise RuntimeError(f"the checkpoints after epoch {final.epoch} are damaged; run again to resume from there")
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        best = fetch_best(scratch, final, folder)
        if best is None:
            raise RuntimeError(f"the checkpoint of epoch {final.best_epoch}, the best, is damaged; run again to resume")
        content = {name: (folder / name).read_bytes() for name in (WEIGHTS, TRAINING)}
    meta = best.model_copy(update={"history": final.history, "hardware": final.hardware})
    if add:
        content[WEIGHTS], meta = add(content[WEIGHTS], meta)
    content |= {
        META: checkpoint.sealed(meta, content).model_dump_json(indent=1).encode(),
        "history.json": json.dumps(list(map(dataclasses.asdict, final.history)), indent=1).encode(),
    }
    return commits.commit(
        target,
        kind="checkpoint",
        parents=parents,
        parameters=final.parameters,
        listed=[commits.write_file(target, name, data) for name, data in (*content.items(), *_kept(scratch))],
        statistics=CheckpointStatistics(
            best_epoch=final.best_epoch,
            history=final.history,
            model=meta.model,
            temperature=meta.model.temperature,
            stopped_early=final.epoch < final.recipe["training"].get("epochs", 1),
            resolved=final.resolved,
            recipe=final.recipe,
            split=split,
            hardware=meta.hardware,
            is_reproducible=hardware.is_reproducible(meta.hardware),
            seconds=seconds,
        ),
    )


def finish(stage: Train, prepared: Manifest, *, started: float, add: AddToModel | None = None) -> None:
    """Commit the best epoch, unless another run was first; the job `started` at this monotonic time."""
    if not manifest.is_committed(stage.target):
        commit(
            stage.scratch,
            stage.target,
            parents=stage.parents | {"prepared": prepared.as_parent(stage.prepared)},
            split=prepared.statistics_of(PREPARED).split,
            add=add,
            seconds=time.monotonic() - started,
        )
