"""Choices before the workers of a training start: the loader, and the batch size.

No torch here, whose import takes seconds.
"""

import dataclasses
import math
from typing import Final, TypedDict

from storage.manifest import Manifest
from storage.terminal import count
from storage.uri import URI
from tasks.jobs import dataset_parts
from tasks.jobs.spec import JobSpec
from tasks.learning import images
from tasks.learning.epoch_metrics import choose_batch_size
from tasks.learning.recipes import Recipe
from tasks.resources.scaling import Scale
from tasks.stages import Train

SCORE: Final = "best_epoch"
"""Metric by which Ray Train selects checkpoints: the epoch if it is the best so far, else 0. Of equal validation losses
it would prefer the last, `epoch_metrics.best_epoch` the first."""
_RESIDENT_BYTES = 2 * 2**30
"""Largest dataset, in bytes of pixels over all ranks, that `auto` holds in memory."""


class Assignment(TypedDict):
    """Parameters of each Ray Train worker."""

    spec: JobSpec[Train]
    attempt: URI
    loader: str
    scale: Scale


def choose_loader(stage: Train, prepared: Manifest, *, workers: int) -> str:
    """Return the loader to use; raise `ValueError` if so many `workers` cannot train.

    `auto` keeps up to 2 GiB of pixels, over all ranks, in memory. Larger datasets are streamed by the workers. Encoded
    images are always fed by Ray Data, whose tasks decode and augment them; without Ray, by this process.
    """
    store = images.store_of(prepared.columns["metadata"])
    if stage.recipe.data.store != store:
        raise ValueError(f"store must be {store}, as in {stage.prepared}, got {stage.recipe.data.store!r}")
    loader = stage.recipe.finetuning.loader
    if loader == "auto":
        num_bytes = prepared.rows * math.prod(images.shape_of(prepared.columns["metadata"]))
        loader = "resident" if num_bytes <= _RESIDENT_BYTES else "streaming"
        loader = "ray-data" if dataset_parts.is_encoded(prepared) else loader
    batch_size, rows = resolved(stage.recipe, prepared).finetuning.batch_size, prepared.num_rows("train")
    rows -= rows % workers if loader == "dataloader" else 0  # its sampler gives every rank the same number of rows
    if not workers <= batch_size <= rows:
        raise ValueError(
            "batch_size must be at least the number of workers and at most the number of training rows: got "
            f"{batch_size} with {count(workers, 'worker')} and {count(rows, 'row')}; change --set batch_size or "
            "--workers"
        )
    if stage.recipe.resources.step == "graph" and (workers > 1 or loader != "resident"):
        raise ValueError(
            f"step must be eager with {workers} workers and loader={loader}, got 'graph'; a graph needs one worker and "
            "rows in memory"
        )
    return loader


def resolved(recipe: Recipe, prepared: Manifest) -> Recipe:
    """Return `recipe` with the batch size that it chooses for the training rows of `prepared`."""
    batch_size = choose_batch_size(recipe.finetuning.batch_size, prepared.num_rows("train"))
    return dataclasses.replace(recipe, training=dataclasses.replace(recipe.finetuning, batch_size=batch_size))
