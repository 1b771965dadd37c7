"""What comes before and after a training's workers, in the process that starts them: no torch, which takes seconds."""

import json
import math
import time
import uuid
from collections.abc import Iterable
from typing import Final

from storage import files, manifest
from storage.manifest import Manifest
from storage.uri import URI
from tasks.jobs import parts
from tasks.jobs.spec import TrainSpec
from tasks.learning import checkpoint, images
from tasks.learning.epoch import check_steps, local_batch_size

RAY_DATA: Final = "ray-data"
"""The loader that Ray Data feeds."""
SPLITS: Final = ("train", "validation")
"""What a training reads."""
_RESIDENT_BYTES = 2 * 2**30
"""Largest dataset, in bytes of pixels over all ranks, that `auto` holds in memory."""


def choose_loader(asked: str, prepared: Manifest, *, has_idle_nodes: bool) -> str:
    """Return the loader that `asked` means.

    `auto` holds up to 2 GiB of pixels in memory. More is streamed: by Ray Data where GPUs train and other nodes have
    CPUs to read for them (`has_idle_nodes`), else by the workers themselves. Both give the same batches.
    """
    if asked != "auto":
        return asked
    num_bytes = prepared.rows * math.prod(images.shape_of(prepared.columns["metadata"]))
    if num_bytes <= _RESIDENT_BYTES:
        return "resident"
    return RAY_DATA if has_idle_nodes else "streaming"


def fewest_steps(batch_size: int, prepared: Manifest, *, workers: Iterable[int]) -> int:
    """Steps that an epoch has with any of these numbers of workers; raises `WrongBatchSize` as they would."""
    found = []
    for world_size in workers:
        for rank in (0, world_size - 1):  # the first has the largest share of a batch, the last one the smallest
            shard = parts.shard(prepared.split("train"), rank=rank, world_size=world_size)
            rows = sum(part.stop - part.start for part in shard)
            share = local_batch_size(batch_size, rank=rank, world_size=world_size)
            found.append(rows // share if share else 0)
            check_steps(found[-1], batch_size=batch_size, world_size=world_size, num_rows=rows)
    return min(found)


def new_attempt(scratch: URI) -> str:
    """The name of a run folder that no attempt has: Ray Train's own state of an earlier one is never trusted."""
    number = max(checkpoint.attempts(scratch), default=0) + 1
    claim = json.dumps({"token": uuid.uuid4().hex}).encode()  # so that it is known again when a reply is lost
    while True:
        try:
            files.create(scratch.child(f"attempt-{number}/_attempt.json"), claim)
        except FileExistsError:
            number += 1
        else:
            return f"attempt-{number}"


def commit(spec: TrainSpec, *, started: float, loader: str) -> None:
    """Commit the best epoch of all attempts, unless another run was first.

    Args:
        spec: The training.
        started: When it began, on the monotonic clock.
        loader: What fed it, `auto` resolved.
    """
    if not files.exists(spec.target.child(manifest.NAME)):
        about = {"seconds": time.monotonic() - started, "loader": loader}
        checkpoint.commit(spec.scratch, spec.target, prepared=spec.source, initial=spec.beginning, statistics=about)
