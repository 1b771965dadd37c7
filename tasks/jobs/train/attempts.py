"""Work before and after a training's workers, in the process that starts them; no torch, whose import takes seconds."""

import json
import math
import time
import uuid
from collections.abc import Iterable, Sequence
from typing import Final

from storage import files, manifest
from storage.manifest import File, Manifest
from storage.uri import URI
from tasks.jobs import dataset_parts, events
from tasks.jobs.spec import TrainSpec
from tasks.learning import checkpoint, checkpoint_result, images
from tasks.learning.epoch_metrics import check_steps, local_batch_size

RAY_DATA: Final = "ray-data"
"""Name of the loader that Ray Data feeds."""
DATALOADER: Final = "dataloader"
"""Name of the loader that wraps torch's DataLoader."""
SPLITS: Final = ("train", "validation")
"""Splits that a training reads."""
_RESIDENT_BYTES = 2 * 2**30
"""Largest dataset, in bytes of pixels over all ranks, that `auto` holds in memory."""


def choose_loader(asked: str, prepared: Manifest, *, has_idle_nodes: bool) -> str:
    """Return the loader for `asked`; `auto` chooses one by the dataset's size.

    `auto` keeps up to 2 GiB of pixels, over all ranks, in memory. Larger datasets are streamed: by Ray Data if GPUs
    train and other nodes have CPUs to read for them (`has_idle_nodes`), else by the workers, with the same batches.
    """
    if asked != "auto":
        return asked
    num_bytes = prepared.rows * math.prod(images.shape_of(prepared.columns["metadata"]))
    if num_bytes <= _RESIDENT_BYTES:
        return "resident"
    return RAY_DATA if has_idle_nodes else "streaming"


def fewest_steps(batch_size: int, prepared: Manifest, *, workers: Iterable[int], loader: str) -> int:
    """Return the fewest steps of an epoch with any of these `workers`; raise `WrongBatchSize` if one has too few."""
    found = []
    for world_size in workers:
        for rank in (0, world_size - 1):  # the first rank has the largest share of a batch, the last the smallest
            rows = _rows_of(prepared.split("train"), batch_size, rank=rank, world_size=world_size, loader=loader)
            share = local_batch_size(batch_size, rank=rank, world_size=world_size)
            found.append(rows // share if share else 0)
            check_steps(found[-1], batch_size=batch_size, world_size=world_size, num_rows=rows)
    return min(found)


def _rows_of(listed: Sequence[File], batch_size: int, *, rank: int, world_size: int, loader: str) -> int:
    """Return the number of training rows of one rank."""
    if loader == DATALOADER:  # its sampler gives every rank the same number of rows
        return sum(file.rows or 0 for file in listed) // world_size
    shard = dataset_parts.shard(listed, rank=rank, world_size=world_size, batch_size=batch_size)
    return sum(part.stop - part.start for part in shard)


def new_attempt(scratch: URI) -> str:
    """Create a new attempt's folder and return its name; Ray Train's state of earlier attempts is never reused."""
    number = max(checkpoint.attempts(scratch), default=0) + 1
    claim = json.dumps({"token": uuid.uuid4().hex}).encode()  # identifies this claim if a reply of S3 is lost
    while True:
        try:
            files.create(scratch.child(f"attempt-{number}/_attempt.json"), claim)
        except FileExistsError:
            number += 1
        else:
            return f"attempt-{number}"


def trained_on(spec: TrainSpec, prepared: Manifest) -> str:
    """Return the identity of the bytes that `spec` trains on and starts from, as its checkpoints record it."""
    beginning = [manifest.load(spec.beginning).content] if spec.beginning else []
    return " ".join([spec.source.fingerprint, prepared.content, *beginning])


def discard_others(spec: TrainSpec, prepared: Manifest) -> None:
    """Remove attempts that used other bytes: their dataset or initial weights were made again since."""
    if gone := checkpoint.discard_others(spec.scratch, prepared=trained_on(spec, prepared)):
        events.tell(
            f"WARNING: earlier attempts that are not resumed: {gone}, because the bytes of {spec.source} or of the "
            "initial weights have changed since"
        )


def commit(spec: TrainSpec, prepared: Manifest, *, started: float, loader: str) -> None:
    """Commit the best epoch of all attempts, unless another run was first.

    Args:
        spec: Spec of the training.
        prepared: Manifest of the dataset that it was trained on.
        started: Start of the job on the monotonic clock.
        loader: Name of the loader, with `auto` resolved.
    """
    if not files.exists(spec.target.child(manifest.NAME)):
        split = prepared.statistics.get("split")
        about = {"seconds": time.monotonic() - started, "loader": loader, "split": split}
        trained = prepared.as_parent(spec.source)
        checkpoint_result.commit(spec.scratch, spec.target, prepared=trained, initial=spec.beginning, statistics=about)
