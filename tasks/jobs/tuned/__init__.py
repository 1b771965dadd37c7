"""Start jobs on a local Ray faster and with fewer processes on a small machine, using private names of Ray.

Every piece has a public counterpart, which clusters, large machines and other versions of Ray use:

- `data`: Ray Data with its own settings
- `trainer`: `ray.train.torch.TorchTrainer`
"""

import os
from importlib.metadata import version

from tasks.jobs import dashboard

NAME = "PIPELINE_TUNED"
"""Set to 0 to use only the public interfaces of Ray; jobs inherit it from their flow."""
TESTED = ("2.60.0",)
"""Versions of Ray that the private names were tested with."""
MOST_CORES = 16
"""On machines with more cores the processes that this saves are too few to matter."""


def is_on(cores: int | None) -> bool:
    """Return whether private names of Ray may be used by a run on so many `cores`, None on a cluster.

    Never with the dashboard, which shows what they leave out.
    """
    is_small = cores is not None and cores <= MOST_CORES
    return is_small and os.environ.get(NAME) != "0" and not dashboard.is_on() and version("ray") in TESTED
