"""What a runner is given beside a stage: time limits, and resources of each worker. They change no byte of a result."""

import dataclasses
from typing import Literal

from pydantic import BaseModel, ConfigDict

from tasks.learning.recipes import Recipe

Workers = int | None
"""Workers as asked for: a number (0: without Ray), None for auto."""


class Limits(BaseModel):
    """Time limits of a stage, in seconds."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    stage_s: float = 24 * 3600.0
    """Seconds after which a stage is aborted."""
    stall_s: float = 600.0
    """Seconds without progress after which a training worker is restarted, or the wait for a cluster's nodes ends."""
    checkpoint_s: float = 30.0
    """Seconds from the end of writing a checkpoint of a training until the next one is due."""
    download_s: float = 30.0
    """Seconds without data after which a download gives a connection up."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Needs:
    """Resources that each worker requires, and the number of workers."""

    accelerator_type: str = ""
    """Kind of GPU by Ray's name for it; empty: any, or none."""
    cpus: float = 0.0
    """CPUs as Ray counts them; 0: an equal share of a node, with a GPU at most 4."""
    batch_size: int | None = None
    """Rows of a step over all workers, which limit the number of GPUs chosen automatically; None: no limit."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`cuda`: a whole GPU; `cpu`: none, even if there are some; `auto`: a GPU if the cluster has any now."""
    workers: Workers = None


ANY = Needs()


def needs_of(recipe: Recipe, workers: Workers = None) -> Needs:
    """Return the resources that each of so many workers requires."""
    return Needs(
        accelerator_type=recipe.resources.accelerator_type,
        cpus=recipe.resources.cpus_per_worker,
        batch_size=recipe.training.batch_size if recipe.training.kind == "finetune" else None,
        device=recipe.resources.device,
        workers=workers,
    )
