"""Optimizer and learning-rate schedule of a recipe; the optimizers are torch's, safe for channels-last weights."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from tasks.learning.recipes import Recipe

_FIRST, _LAST = 0.2, 0.07
"""Shares of the peak at which the triangular schedule begins and ends; from airbench94, see `models.airbench94`."""
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, nn.GroupNorm, nn.LayerNorm)


class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW`, to the bit, but right and faster for channels-last weights on CPUs; without a closure.

    The fused kernel for CPUs reads weights and gradients in memory order (torch 2.14): with another layout it would
    update each weight by the gradient of another one. So each gradient gets the layout of its weight before a step. And
    the kernel copies tensors that are not contiguous, about 4 % of a step of ResNet-18 in bf16. So during a step
    channels-last tensors have their dimensions in memory order, which makes them contiguous. If a step raises, the
    dimensions stay permuted: make the model again before going on.
    """

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _step_in_memory_order(self)


class SGD(torch.optim.SGD):
    """`torch.optim.SGD` with the same changes as `AdamW`."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        _step_in_memory_order(self)


def make_optimizer(recipe: Recipe, model: nn.Module) -> Optimizer:
    """Make the optimizer of `recipe` for the parameters of `model`.

    SGD has Nesterov's momentum, and a group of its own for the biases of normalisation layers: their learning rate is
    `norm_bias_scale` times as high, with the same decay per step.
    """
    if recipe.optimizer == "adamw":
        return AdamW(model.parameters(), lr=recipe.learning_rate, weight_decay=recipe.weight_decay, fused=True)
    scale = recipe.norm_bias_scale
    chosen = {id(module.bias) for module in model.modules() if isinstance(module, _NORMS) and scale != 1}
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [{"params": [one for one in trained if id(one) not in chosen]}]
    if biases := [one for one in trained if id(one) in chosen]:
        faster = {"lr": recipe.learning_rate * scale, "weight_decay": recipe.weight_decay / scale}
        groups.append({"params": biases, **faster})
    how = {"lr": recipe.learning_rate, "weight_decay": recipe.weight_decay, "momentum": recipe.momentum}
    return SGD(groups, **how, nesterov=recipe.momentum > 0, fused=True)


def make_schedule(recipe: Recipe, optimizer: Optimizer, *, total_steps: int) -> LRScheduler:
    """Make the schedule of `recipe` for a training of `total_steps` steps, all epochs together."""
    if recipe.schedule == "triangular":
        return LambdaLR(optimizer, _triangle(total_steps, warmup_steps=int(recipe.warmup_fraction * total_steps)))
    # OneCycleLR divides by zero if the warm-up is exactly one step, so leave out that step.
    warmup = recipe.warmup_fraction if recipe.warmup_fraction * total_steps != 1 else 0.0
    return OneCycleLR(
        optimizer,
        max_lr=[group["lr"] for group in optimizer.param_groups],
        total_steps=total_steps,
        pct_start=warmup,
        cycle_momentum=recipe.optimizer == "adamw",  # SGD keeps the recipe's momentum
    )


def align_state(optimizer: Optimizer) -> None:
    """Give the tensors of `optimizer`'s state the memory layout of their weights, for a state from another device.

    Fused kernels read both in memory order: with another layout, CUDA's refuse, and those for CPUs would update each
    weight by the momentum of another one.
    """
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == weight.shape and value.stride() != weight.stride():
                state[name] = torch.empty_like(weight).copy_(value)


def _triangle(total_steps: int, *, warmup_steps: int) -> Callable[[int], float]:
    """Return the function from a step to the share of the peak: a straight line up, then one down."""

    def share(step: int) -> float:
        if step < warmup_steps:
            return _FIRST + (1 - _FIRST) * step / warmup_steps
        return 1 - (1 - _LAST) * (step - warmup_steps) / max(1, total_steps - warmup_steps)

    return share


def _step_in_memory_order(optimizer: Optimizer) -> None:
    permuted: list[nn.Parameter] = []

    def before(*_: Any) -> None:
        for group in optimizer.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                if weight.grad.stride() != weight.stride():
                    weight.grad = torch.empty_like(weight).copy_(weight.grad)
                is_channels_last = weight.dim() == 4 and weight.is_contiguous(memory_format=torch.channels_last)
                if weight.is_cpu and is_channels_last and not weight.is_contiguous():
                    _permute(weight, optimizer.state[weight], (0, 2, 3, 1))
                    permuted.append(weight)

    def after(*_: Any) -> None:
        while permuted:
            weight = permuted.pop()
            _permute(weight, optimizer.state[weight], (0, 3, 1, 2))

    optimizer.register_step_pre_hook(before)
    optimizer.register_step_post_hook(after)


def _permute(weight: nn.Parameter, state: dict[str, Any], order: tuple[int, ...]) -> None:
    """Name the dimensions of `weight`, its gradient and its `state` in another order; the memory stays as it is."""
    gradient, weight.grad = weight.grad, None
    weight.data = weight.data.permute(order)
    weight.grad = gradient.permute(order) if gradient is not None else None
    for name, value in state.items():
        if isinstance(value, Tensor) and value.dim() == 4:
            state[name] = value.permute(order)
