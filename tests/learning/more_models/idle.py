"""The small model with a weight that no output depends on, as people's own models sometimes have."""

from typing import Any

import torch
from torch import nn

from tests.learning.more_models import small


def build(**how: Any) -> nn.Module:
    """The weight never gets a gradient."""
    model = small.build(**how)
    model.register_parameter("idle", nn.Parameter(torch.ones(3)))
    return model
