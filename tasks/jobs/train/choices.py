"""Choices before the workers of a training start: the loader, and the steps of an epoch.

No torch here, whose import takes seconds.
"""

import dataclasses
import math
from typing import Final, TypedDict

from storage.manifest import Manifest
from storage.terminal import count
from tasks.jobs import dataset_parts
from tasks.learning import images
from tasks.learning.epoch_metrics import choose_batch_size, local_batch_size
from tasks.learning.recipes import Recipe
from tasks.stages import Train

RAY_DATA: Final = "ray-data"
"""Name of the loader that Ray Data feeds."""
DATALOADER: Final = "dataloader"
"""Name of the loader that wraps torch's DataLoader."""
SCORE: Final = "best_epoch"
"""Metric by which Ray Train selects checkpoints: the epoch if it is the best so far, else 0.

Not the validation loss: of equal losses Ray Train prefers the last, `epoch_metrics.best_epoch` the first.
"""
_RESIDENT_BYTES = 2 * 2**30
"""Largest dataset, in bytes of pixels over all ranks, that `auto` holds in memory."""


class Assignment(TypedDict):
    """Parameters of each Ray Train worker."""

    stage: Train
    stall_s: float
    attempt: str
    loader: str
    threads: int
    use_gpu: bool
    """True if a GPU is reserved for the worker."""


def choose_loader(stage: Train, prepared: Manifest, *, workers: int) -> str:
    """Return the loader to use; raise `ValueError` if so many `workers` cannot train.

    `auto` keeps up to 2 GiB of pixels, over all ranks, in memory. Larger datasets are streamed by the workers. Encoded
    images are always fed by Ray Data, whose tasks decode and augment them; without Ray, by this process.
    """
    store = images.store_of(prepared.columns["metadata"])
    if stage.recipe.data.store != store:
        raise ValueError(f"store must be {store}, as in {stage.prepared}, got {stage.recipe.data.store!r}")
    loader = stage.recipe.training.loader
    if loader == "auto":
        num_bytes = prepared.rows * math.prod(images.shape_of(prepared.columns["metadata"]))
        loader = "resident" if num_bytes <= _RESIDENT_BYTES else "streaming"
        loader = RAY_DATA if dataset_parts.is_encoded(prepared) else loader
    steps_per_epoch(resolved(stage.recipe, prepared).training.batch_size, prepared, workers=workers, loader=loader)
    if stage.recipe.resources.step == "graph" and (workers > 1 or loader != "resident"):
        raise ValueError(
            f"step must be eager with {workers} workers and loader={loader}, got 'graph'; a graph needs one worker and "
            "rows in memory"
        )
    return loader


def steps_per_epoch(batch_size: int, prepared: Manifest, *, workers: int, loader: str) -> int:
    """Return the number of steps of an epoch; raise `ValueError` if some of the `workers` have too few rows."""
    steps, train_files = [], prepared.split("train")
    for rank in (0, workers - 1):  # the first rank has the largest share of a batch, the last the smallest
        rows = prepared.num_rows("train") // workers
        if loader != DATALOADER:  # its sampler gives every rank the same number of rows
            shard = dataset_parts.shard(train_files, rank=rank, world_size=workers, batch_size=batch_size)
            rows = sum(map(len, shard))
        share = local_batch_size(batch_size, rank=rank, world_size=workers)
        steps.append(rows // share if share else 0)
        if steps[-1] == 0:
            raise ValueError(
                "batch_size must be at least the number of workers and at most the number of training rows: got "
                f"{batch_size} with {count(workers, 'worker')} and {count(rows, 'row')} on one of them; change "
                "--set batch_size or --workers"
            )
    return min(steps)


def resolved(recipe: Recipe, prepared: Manifest) -> Recipe:
    """Return `recipe` with the batch size that it chooses for the training rows of `prepared`."""
    batch_size = choose_batch_size(recipe.training.batch_size, prepared.num_rows("train"))
    return dataclasses.replace(recipe, training=dataclasses.replace(recipe.training, batch_size=batch_size))
