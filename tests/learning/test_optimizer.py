"""Optimizers and schedules of recipes; torch's bug with channels-last weights does not reach the user."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import Optimizer

from tasks.learning import recipes
from tasks.learning.optimizer import make_optimizer
from tasks.learning.recipes import SGD, AdamW, Own

_OWN = """
import torch
from tasks.learning.recipes import Data, Own, Recipe, Training, own


def plain(model, *, total_steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=total_steps, fused=True)
    return optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer)


def wrong(model, *, total_steps):
    return torch.optim.SGD(model.parameters()), None


NOT_A_FUNCTION = 5


def recipe(factory=plain):
    training = Training(epochs=1, optimizer=Own(factory=own(factory)))
    return Recipe(name="mine", data=Data(source="mnist"), model="resnet18", training=training)


def of_wrong():
    return recipe(wrong)


def of_a_number():
    return recipe(NOT_A_FUNCTION)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A recipe's file with optimizers of its own."""
    path = tmp_path / "optimizers.py"
    path.write_text(_OWN)
    return path


def own(file: Path, function: str = "recipe") -> Own:
    """The optimizer of the recipe `function` in `file`."""
    optimizer = recipes.load(f"{file}:{function}").finetuning.optimizer
    assert isinstance(optimizer, Own)
    return optimizer


def optimizer_of(recipe: AdamW | SGD | Own, model: nn.Module, *, total_steps: int = 10) -> Optimizer:
    """The optimizer of `model`."""
    return make_optimizer(recipe, model, total_steps=total_steps)[0]


@pytest.mark.parametrize("recipe", [AdamW(), SGD(), None], ids=["adamw", "sgd", "own"])
def test_a_gradient_in_another_memory_format_steps_its_own_weight(recipe: AdamW | SGD | None, file: Path) -> None:
    weights = []
    for layout in (torch.channels_last, torch.contiguous_format):
        torch.manual_seed(0)
        model = nn.Conv2d(8, 16, 3).to(memory_format=layout)
        model.weight.grad = torch.randn(model.weight.shape)
        optimizer = optimizer_of(recipe or own(file), model)
        optimizer.step()
        weights.append(model.weight)
    assert torch.equal(*weights)


def test_sgd_gets_no_frozen_weights_and_keeps_its_momentum() -> None:
    model = nn.Linear(2, 2)
    model.weight.requires_grad_(False)
    optimizer, schedule = make_optimizer(SGD(momentum=0.8), model, total_steps=10)
    optimizer.step()
    schedule.step()
    (group,) = optimizer.param_groups
    assert group["params"] == [model.bias] and group["momentum"] == 0.8


def rates_of(recipe: AdamW, *, total_steps: int, **steps: Any) -> list[float]:
    """The learning rate in each step."""
    optimizer, schedule = make_optimizer(recipe, nn.Linear(1, 1), total_steps=total_steps, **steps)
    rates = list[float]()
    for _ in range(total_steps):
        rates.append(float(schedule.get_last_lr()[0]))
        optimizer.step()
        schedule.step()
    return rates


@pytest.mark.parametrize("total_steps", [1, 4, 100])  # with four, the warm-up is one step
def test_learning_rate_rises_to_its_peak_and_falls_to_almost_nothing(total_steps: int) -> None:
    rates = [rate / 2.0 for rate in rates_of(AdamW(learning_rate=2.0), total_steps=total_steps)]
    peak = rates.index(max(rates))
    assert rates == [*sorted(rates[:peak]), *sorted(rates[peak:], reverse=True)]
    assert total_steps < 100 or (max(rates) > 0.999 and rates[0] == pytest.approx(1 / 25) and rates[-1] < 1e-4)


def test_constant_learning_rate_lies_between_warm_up_and_decay() -> None:
    recipe = AdamW(learning_rate=2.0, schedule="warmup-constant-decay")
    rates = rates_of(recipe, total_steps=10, warmup_steps=2, decay_from=6)
    assert rates == pytest.approx([1.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 1.5, 1.0, 0.5])
    assert rates_of(recipe, total_steps=20, warmup_steps=2, decay_from=12)[:7] == rates[:7], "the same to the bit"


def test_an_optimizer_of_ones_own_is_made_by_its_function(file: Path) -> None:
    optimizer, schedule = make_optimizer(own(file), nn.Linear(1, 1), total_steps=7)
    assert isinstance(optimizer, torch.optim.SGD) and optimizer.param_groups[0]["initial_lr"] == 7
    assert isinstance(schedule, torch.optim.lr_scheduler.ConstantLR)


def test_a_function_that_makes_no_optimizer_and_schedule_is_refused(file: Path) -> None:
    with pytest.raises(TypeError, match="must return an Optimizer and an LRScheduler, got SGD and NoneType"):
        make_optimizer(own(file, "of_wrong"), nn.Linear(1, 1), total_steps=7)
    with pytest.raises(ValueError, match=r"factory must be own\(function\), got 'optimizers.py:NOT_A_FUNCTION"):
        recipes.load(f"{file}:of_a_number")
    with pytest.raises(ValueError, match=r"factory must be own\(function\), got 'plain'"):
        Own(factory="plain")
