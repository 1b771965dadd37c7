"""Optimizer and learning-rate schedule of a recipe."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, OneCycleLR

from tasks.learning import user_code
from tasks.learning.variants import SGD, AdamW, Own


def make_optimizer(
    recipe: AdamW | SGD | Own,
    model: nn.Module,
    *,
    total_steps: int,
    warmup_steps: int = 1,
    decay_from: int = 0,
    backbone: Sequence[nn.Parameter] = (),
    backbone_scale: float = 1.0,
) -> tuple[Optimizer, LRScheduler]:
    """Make the optimizer of the weights of `model`, and its schedule for `total_steps` steps, all epochs together.

    With schedule=warmup-constant-decay, the learning rate rises in `warmup_steps` and falls after step `decay_from`.
    If `backbone_scale` is not 1, weights of the `backbone` are a second group: their learning rate is the first one's
    times this. Weights that are frozen have no gradient, so that steps leave them and their moments alone.
    """
    if isinstance(recipe, Own):
        optimizer, schedule = user_code.resolve(recipe.factory)(model, total_steps=total_steps)
        if not (isinstance(optimizer, Optimizer) and isinstance(schedule, LRScheduler)):
            got = f"{type(optimizer).__name__} and {type(schedule).__name__}"
            raise TypeError(f"optimizer {recipe.factory} must return an Optimizer and an LRScheduler, got {got}")
    else:
        trained, scaled = list(model.parameters()), {id(weight) for weight in backbone if backbone_scale != 1}
        if isinstance(recipe, SGD):
            trained = [parameter for parameter in trained if parameter.requires_grad]
        groups = [[weight for weight in trained if (id(weight) in scaled) == is_scaled] for is_scaled in (False, True)]
        rates = [recipe.learning_rate, recipe.learning_rate * backbone_scale][: 1 + bool(scaled)]
        parameters = [{"params": weights, "lr": rate} for weights, rate in zip(groups, rates, strict=False)]
        decay = recipe.weight_decay
        if isinstance(recipe, AdamW):
            optimizer = torch.optim.AdamW(parameters, weight_decay=decay, fused=True)
        else:
            momentum = recipe.momentum
            optimizer = torch.optim.SGD(
                parameters, momentum=momentum, weight_decay=decay, nesterov=momentum > 0, fused=True
            )
        schedule = (
            LambdaLR(optimizer, _share_of_peak(total_steps, warmup_steps, decay_from))
            if recipe.schedule == "warmup-constant-decay"
            else OneCycleLR(
                optimizer,
                max_lr=rates,
                total_steps=total_steps,
                # OneCycleLR divides by zero if the warm-up is exactly one step, so leave out that step.
                pct_start=recipe.warmup_fraction if recipe.warmup_fraction * total_steps != 1 else 0.0,
                cycle_momentum=isinstance(recipe, AdamW),  # SGD keeps the recipe's momentum
            )
        )
    optimizer.register_step_pre_hook(_align_gradients)
    return optimizer, schedule


def _share_of_peak(total_steps: int, warmup_steps: int, decay_from: int) -> Callable[[int], float]:
    """Return the learning rate by step, as a share of its peak; before the decay it is the same for any `total_steps`.

    It includes the first step of the decay, whose rate is part of the state before it.
    """

    def share(step: int) -> float:
        left = (total_steps - step) / (total_steps - decay_from) if step > decay_from else 1.0
        return left * min(1.0, (step + 1) / warmup_steps)

    return share


def align_state(optimizer: Optimizer) -> None:
    """Give the tensors of `optimizer`'s state the memory layout of their weights, for a state from another device.

    Fused kernels read both in memory order: with another layout, CUDA's refuse, and those for CPUs would update each
    weight by the momentum of another one.
    """
    for weight, state in optimizer.state.items():
        for name, value in state.items():
            if isinstance(value, Tensor) and value.shape == weight.shape and value.stride() != weight.stride():
                state[name] = torch.empty_like(weight).copy_(value)


def _align_gradients(optimizer: Optimizer, *_: object) -> None:
    """Give each gradient the layout of its weight: fused kernels for CPUs read both in memory order (torch 2.14)."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            if weight.grad is not None and weight.grad.stride() != weight.stride():
                weight.grad = torch.empty_like(weight).copy_(weight.grad)
