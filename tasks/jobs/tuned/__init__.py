"""Start jobs on a local Ray faster and with fewer processes on a small machine, using private names of Ray.

Every piece has a public counterpart, which clusters, large machines and other versions of Ray use:

- `data`: Ray Data with its own settings
- `trainer`: `ray.train.torch.TorchTrainer`
"""

import os
from collections.abc import Mapping
from importlib.metadata import version

from tasks.jobs import dashboard

NAME = "PIPELINE_TUNED"
"""Set to 0 to use only the public interfaces of Ray; jobs inherit it from their flow."""
TESTED = ("2.60.0",)
"""Versions of Ray that the private names were tested with."""
MOST_CORES = 16
"""On machines with more cores the processes that this saves are too few to matter."""


def is_on(cores: int | None, env: Mapping[str, str] = os.environ) -> bool:
    """Return whether private names of Ray may be used; never with the dashboard, which shows what they leave out.

    Args:
        cores: Cores that the run computes on; None on a cluster.
        env: Environment variables.
    """
    small = cores is not None and cores <= MOST_CORES
    return small and env.get(NAME) != "0" and env.get(dashboard.NAME) != "1" and version("ray") in TESTED
