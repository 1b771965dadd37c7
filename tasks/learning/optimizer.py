"""The optimizer: torch's AdamW, without its copies of channels-last tensors on CPUs."""

from typing import Any

import torch
from torch import Tensor


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW(fused=True)`, bit for bit, but faster for weights in channels-last memory format.

    For such weights torch's CPU kernel makes a contiguous copy in each step: 2 to 4 % of a step of ResNet-18 in bf16
    (torch 2.14). A view with the dimensions permuted to their order in memory is already contiguous.

    A gradient with another memory layout than its weight is copied into the weight's layout. torch's kernel does not do
    that: it would update each weight by the gradient of another one.
    """

    def _init_group(self, group: dict[str, Any], *lists: list[Tensor]) -> bool:
        has_complex: bool = super()._init_group(group, *lists)
        weights, gradients, *_ = used = [some for some in lists[:5] if some] or [[], []]  # the last of six: steps
        for index, weight in enumerate(weights):
            if not weight.is_cpu:
                continue
            if gradients[index].stride() != weight.stride():
                gradients[index] = torch.empty_like(weight).copy_(gradients[index])
            if weight.dim() == 4 and not weight.is_contiguous():
                for some in used:
                    some[index] = _as_it_lies(some[index])
        return has_complex


def _as_it_lies(tensor: Tensor) -> Tensor:
    return tensor.permute(0, 2, 3, 1) if tensor.is_contiguous(memory_format=torch.channels_last) else tensor
