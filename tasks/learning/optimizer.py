"""The optimizer: torch's AdamW, safe for weights in channels-last memory format."""

from typing import Any

import torch


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` that gives each gradient the memory layout of its weight before a step.

    The fused kernel for CPUs reads both in memory order (torch 2.14): with another layout it would update each weight
    by the gradient of another one. Gradients with the right layout, the usual case, are not copied.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register_step_pre_hook(_align_gradients)


def _align_gradients(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is not None and weight.grad.stride() != weight.stride():
                weight.grad = torch.empty_like(weight).copy_(weight.grad)
