"""Choices before a training starts: the loader, the batch size, and whether steps are captured and compiled.

No torch here, whose import takes seconds.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final, TypedDict

from storage.manifest import Manifest
from storage.statistics import EpochMetrics
from storage.terminal import count
from storage.uri import URI
from tasks.jobs import dataset_parts
from tasks.jobs.spec import JobSpec
from tasks.learning import images, user_code
from tasks.learning.epoch_metrics import choose_batch_size
from tasks.learning.recipes import Recipe
from tasks.resources.scaling import Scale
from tasks.stages import Train

SCORE: Final = "best_epoch"
"""Metric by which Ray Train selects checkpoints: the epoch if it is the best so far, else 0. Of equal validation losses
it would prefer the last, `epoch_metrics.best_epoch` the first."""
_COMPILED_S = 45.0
"""Seconds of steps from which compiling them pays (docs/gpu.md)."""
_RESIDENT_BYTES = 2 * 2**30
"""Largest dataset, in bytes of pixels over all ranks, that `auto` holds in memory on CPUs."""


class Assignment(TypedDict):
    """Parameters of each Ray Train worker."""

    spec: JobSpec[Train]
    attempt: URI
    loader: str
    scale: Scale


def choose_loader(stage: Train, prepared: Manifest, *, workers: int) -> str:
    """Return the loader to use; raise `ValueError` if so many `workers` cannot train.

    `auto` leaves pixels to the ranks, which know their memory (`resident_or_streaming`). Encoded images are always fed
    by Ray Data, whose tasks decode and augment them; without Ray, by this process.
    """
    store = images.store_of(prepared.columns["metadata"])
    if stage.recipe.data.store != store:
        raise ValueError(f"store must be {store}, as in {stage.prepared}, got {stage.recipe.data.store!r}")
    loader = stage.recipe.finetuning.loader
    if loader == "auto" and dataset_parts.is_encoded(prepared):
        loader = "ray-data"
    batch_size, rows = resolved(stage.recipe, prepared).finetuning.batch_size, prepared.num_rows("train")
    rows -= rows % workers if loader == "dataloader" else 0  # its sampler gives every rank the same number of rows
    if not workers <= batch_size <= rows:
        raise ValueError(
            "batch_size must be at least the number of workers and at most the number of training rows: got "
            f"{batch_size} with {count(workers, 'worker')} and {count(rows, 'row')}; change --set batch_size or "
            "--workers"
        )
    why_eager(stage.recipe, workers=workers, loader=loader)
    return loader


def resident_or_streaming(num_bytes: int, free: Sequence[int]) -> str:
    """Return the loader that `auto` means for `num_bytes` of pixels over all ranks.

    Each rank on a GPU has as much memory `free` for its share, of which half may be rows; on CPUs `free` is empty.
    """
    most = min(free) * len(free) // 2 if free else _RESIDENT_BYTES
    return "resident" if num_bytes <= most else "streaming"


def why_eager(recipe: Recipe, *, workers: int, loader: str) -> str:
    """Return what rules out steps as CUDA graphs, if anything; raise `ValueError` if the recipe requires them."""
    against = {
        count(workers, "worker"): workers > 1,
        f"loader={loader}": loader not in ("resident", "auto"),
        f"micro_batches={recipe.finetuning.micro_batches}": recipe.finetuning.micro_batches > 1,
        "a model of your own (step=graph if it does the same in every step)": recipe.resources.step == "auto"
        and user_code.is_reference(recipe.model),
    }
    reason = " and ".join(name for name, holds in against.items() if holds)
    if recipe.resources.step == "graph" and reason:
        raise ValueError(
            f"step must be auto or eager with {reason}, got 'graph'; a graph needs one worker and rows in memory"
        )
    return reason


def compiling_pays(recipe: Recipe, history: Sequence[EpochMetrics], *, precision: str) -> bool:
    """Return whether `auto` compiles steps after `history`, which are CUDA graphs; time must not decide bits of fp32.

    The first epoch after a start also chooses algorithms and captures, so the faster of the last two counts.
    """
    if not history or recipe.finetuning.compile != "auto" or precision == "fp32":
        return False
    paces = [epoch.train_s - epoch.data_wait_s for epoch in history[-2:] if epoch.launch == "graph"]
    is_long = len(paces) == 2 and min(paces) * (recipe.finetuning.epochs - len(history)) > _COMPILED_S
    return history[-1].launch == "compiled graph" or is_long


def resolved(recipe: Recipe, prepared: Manifest) -> Recipe:
    """Return `recipe` with the batch size that it chooses for the training rows of `prepared`."""
    batch_size = choose_batch_size(recipe.finetuning.batch_size, prepared.num_rows("train"))
    return dataclasses.replace(recipe, training=dataclasses.replace(recipe.finetuning, batch_size=batch_size))
