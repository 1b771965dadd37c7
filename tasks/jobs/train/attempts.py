"""Work before and after a training's workers, in the process that starts them; no torch, whose import takes seconds."""

import json
import math
import time
import uuid
from collections.abc import Iterable
from typing import Any, Final, TypedDict

from storage import files, manifest
from storage.manifest import Manifest
from storage.uri import URI
from tasks.jobs import dataset_parts, events
from tasks.jobs.spec import TrainSpec
from tasks.learning import checkpoint, checkpoint_result, images
from tasks.learning.epoch_metrics import check_steps, local_batch_size
from tasks.learning.recipes import Recipe

RAY_DATA: Final = "ray-data"
"""Name of the loader that Ray Data feeds."""
DATALOADER: Final = "dataloader"
"""Name of the loader that wraps torch's DataLoader."""
SPLITS: Final = ("train", "validation")
"""Splits that a training reads."""
SCORE: Final = "best_epoch"
"""Metric by which Ray Train selects checkpoints: the epoch if it is the best so far, else 0.

Not the validation loss: of equal losses Ray Train prefers the last, `epoch_metrics.best_epoch` the first.
"""
_NODES = "_nodes-rank-"
"""Start of the name of a file, in an attempt's folder, that lists the nodes that worked for a rank."""
_RESIDENT_BYTES = 2 * 2**30
"""Largest dataset, in bytes of pixels over all ranks, that `auto` holds in memory."""


class Assignment(TypedDict):
    """Parameters of each Ray Train worker."""

    spec: str
    """The `TrainSpec` as JSON."""
    attempt: str
    loader: str
    threads: int
    use_gpu: bool
    """True if a GPU is reserved for the worker."""


def begin(spec: TrainSpec, prepared: Manifest, *, workers: int, has_idle_nodes: bool = False) -> tuple[str, str]:
    """Check that so many `workers` can train, and create a new attempt; return the loader to use and its name."""
    encoding = images.encoding_of(prepared.columns["metadata"])
    if spec.recipe.image_encoding != encoding:
        raise ValueError(f"image_encoding must be {encoding}, as in {spec.source}, got {spec.recipe.image_encoding!r}")
    loader = _chosen_loader(spec.recipe.loader, prepared, has_idle_nodes=has_idle_nodes)
    steps_per_epoch(spec.recipe.batch_size, prepared, workers=workers, loader=loader)
    if spec.recipe.step == "graph":  # a recipe that asks for one asks for GPUs, too
        takes_graph(spec.recipe, device="cuda", world_size=workers, loader=loader)
    if gone := checkpoint.discard_others(spec.scratch, prepared=trained_on(spec, prepared)):
        events.write_line(
            f"WARNING: earlier attempts that are not resumed: {gone}, because the bytes of {spec.source} or of the "
            "initial weights have changed since"
        )
    return loader, new_attempt(spec.scratch)


def _chosen_loader(asked: str, prepared: Manifest, *, has_idle_nodes: bool) -> str:
    """Return the loader for `asked`.

    `auto` keeps up to 2 GiB of pixels, over all ranks, in memory. Larger datasets are streamed: by Ray Data if GPUs
    train and other nodes have CPUs to read for them (`has_idle_nodes`), else by the workers, with the same batches.
    Encoded images are always fed by Ray Data, whose tasks decode and augment them; without Ray, by this process.
    """
    if asked != "auto":
        return asked
    if dataset_parts.is_encoded(prepared):
        return RAY_DATA
    num_bytes = prepared.rows * math.prod(images.shape_of(prepared.columns["metadata"]))
    if num_bytes <= _RESIDENT_BYTES:
        return "resident"
    return RAY_DATA if has_idle_nodes else "streaming"


def takes_graph(recipe: Recipe, *, device: str, world_size: int, loader: str) -> bool:
    """Return whether the steps of `recipe` run as a CUDA graph.

    Args:
        recipe: Its `step`: `eager` never does, `auto` if possible, `graph` always.
        device: `cpu` or `cuda`.
        world_size: Number of workers.
        loader: Kind of loader.

    Raises:
        ValueError: `step` is `graph`, but a graph is not possible here.
    """
    needed = {"a GPU": device == "cuda", "workers=1": world_size == 1, "loader=resident": loader == "resident"}
    missing = [name for name, is_there in needed.items() if not is_there]
    if missing and recipe.step == "graph":
        raise ValueError(f"step must be eager or auto without {' and '.join(missing)}, got 'graph'")
    return recipe.step != "eager" and not missing


def record_nodes(attempt: URI, *, rank: int, trained: str, transformed: Iterable[str]) -> None:
    """Record on which node `rank` trains, and which nodes read and transformed rows for it."""
    found = {"trained": trained, "transformed": sorted(transformed)}
    files.put(attempt.child(f"{_NODES}{rank}.json"), json.dumps(found).encode())


def _nodes(scratch: URI) -> dict[str, list[str]]:
    """Return the ids of the nodes that trained and that transformed rows, over all ranks and attempts."""
    found: dict[str, set[str]] = {"trained": set(), "transformed": set()}
    for number in checkpoint.attempts(scratch):
        folder = scratch.child(f"attempt-{number}")
        for name in files.children(folder):
            if name.startswith(_NODES):
                one = json.loads(files.read(folder.child(name)))
                found["trained"].add(one["trained"])
                found["transformed"].update(one["transformed"])
    return {what: sorted(ids) for what, ids in found.items()}


def steps_per_epoch(batch_size: int, prepared: Manifest, *, workers: int, loader: str) -> int:
    """Return the number of steps of an epoch; raise `WrongBatchSize` if some of the `workers` have too few rows."""
    steps, train_files = [], prepared.split("train")
    for rank in (0, workers - 1):  # the first rank has the largest share of a batch, the last the smallest
        rows = num_train_rows(prepared) // workers
        if loader != DATALOADER:  # its sampler gives every rank the same number of rows
            shard = dataset_parts.shard(train_files, rank=rank, world_size=workers, batch_size=batch_size)
            rows = sum(map(len, shard))
        share = local_batch_size(batch_size, rank=rank, world_size=workers)
        steps.append(rows // share if share else 0)
        check_steps(steps[-1], batch_size=batch_size, world_size=workers, num_rows=rows)
    return min(steps)


def num_train_rows(prepared: Manifest) -> int:
    """Return the number of training rows of a prepared dataset."""
    return sum(file.rows or 0 for file in prepared.split("train"))


def workers_before(spec: TrainSpec, prepared: Manifest) -> int | None:
    """Return the number of workers of the epochs on the same bytes so far, if `auto` may choose another number.

    The weights depend on the number, and `auto` chooses it by the nodes that are there now. None without such epochs.
    """
    metas = (meta for _, meta in checkpoint.described(spec.scratch)) if spec.workers is None else iter(())
    newest = next(metas, None)
    is_resumed = newest is not None and newest.prepared == trained_on(spec, prepared)
    return int(newest.resolved["workers"]) if newest and is_resumed else None


def new_attempt(scratch: URI) -> str:
    """Create a new attempt's folder and return its name; Ray Train's state of earlier attempts is never reused."""
    number = max(checkpoint.attempts(scratch), default=0) + 1
    claim = json.dumps({"token": uuid.uuid4().hex}).encode()  # identifies this claim if a reply of S3 is lost
    while True:
        try:
            files.put(scratch.child(f"attempt-{number}/_attempt.json"), claim, mode="create")
        except FileExistsError:
            number += 1
        else:
            return f"attempt-{number}"


def trained_on(spec: TrainSpec, prepared: Manifest) -> str:
    """Return the identity of the bytes that `spec` trains on and starts from, as its checkpoints record it."""
    initial = [manifest.load(spec.initial).content] if spec.initial else []
    return " ".join([spec.source.fingerprint, prepared.content, *initial])


def commit(spec: TrainSpec, prepared: Manifest, *, started: float, loader: str) -> None:
    """Commit the best epoch of all attempts, unless another run was first; the job `started` at this monotonic time."""
    if not manifest.is_committed(spec.target):
        split = prepared.statistics.get("split")
        about: dict[str, Any] = {"seconds": time.monotonic() - started, "loader": loader, "split": split}
        if any((nodes := _nodes(spec.scratch)).values()):
            about["nodes"] = nodes
        trained = prepared.as_parent(spec.source)
        rows = num_train_rows(prepared)
        checkpoint_result.commit(
            spec.scratch, spec.target, prepared=trained, initial=spec.initial, num_rows=rows, statistics=about
        )
