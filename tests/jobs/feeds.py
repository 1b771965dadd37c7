"""Context of a rank whose rows a test reads without a training."""

from typing import Any

import torch

from tasks.jobs.train.make_loader import RankContext


def reader(loader: str, **about: Any) -> RankContext:
    """The only rank, on the CPU, with batches as they come from the DataLoader; `about` has what differs."""
    usual: dict[str, Any] = {"rank": 0, "world_size": 1, "device": torch.device("cpu"), "threads": 1}
    usual |= {"prepare": iter, "report": lambda folder, history: None}
    return RankContext(loader=loader, **usual | about)
