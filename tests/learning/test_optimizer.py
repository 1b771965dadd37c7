"""Optimizers for channels-last weights: torch's bits without torch's bug; groups and schedules of recipes."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from tasks.learning import models
from tasks.learning.optimizer import SGD, AdamW, make_optimizer, make_schedule
from tests.learning import training


def test_weights_and_state_are_to_the_bit_those_of_torchs_adamw() -> None:
    some, state = _after_steps(AdamW)
    others, others_state = _after_steps(torch.optim.AdamW)
    assert all(torch.equal(one, other) for one, other in zip(some, others, strict=True))
    for number, values in others_state.items():
        assert all(torch.equal(state[number][name], value) for name, value in values.items())
        assert all(state[number][name].stride() == value.stride() for name, value in values.items())


@pytest.mark.parametrize("kind", [AdamW, SGD])
def test_kernel_gets_contiguous_tensors_and_weights_keep_their_layout(kind: Any) -> None:
    weights = [nn.Parameter(weight.detach()) for weight in _weights()]
    optimizer = kind(weights, lr=0.1, fused=True)
    layouts = [(weight.shape, weight.stride(), weight.data_ptr()) for weight in weights]
    for _ in range(2):  # the first step makes the state
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        with _FusedStep() as step:
            optimizer.step()
        assert step.were_contiguous
        assert [(weight.shape, weight.stride(), weight.data_ptr()) for weight in weights] == layouts
        assert all(weight.grad.stride() == weight.stride() for weight in weights if weight.grad is not None)


class _FusedStep(TorchDispatchMode):
    """Notes whether all tensors of the fused kernel's call are contiguous."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.were_contiguous: bool | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "fused" in str(func):
            self.were_contiguous = all(tensor.is_contiguous() for tensors in args[:4] for tensor in tensors)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("kind", "is_right"),
    [pytest.param(AdamW, True, id="ours"), pytest.param(torch.optim.AdamW, False, id="torch's, else ours can go")],
)
def test_a_gradient_in_another_memory_format_steps_its_own_weight(
    kind: type[torch.optim.AdamW], is_right: bool
) -> None:
    lain_otherwise, contiguous = nn.Parameter(_weights()[0].detach()), nn.Parameter(_weights()[0].detach().contiguous())
    for weight in (lain_otherwise, contiguous):
        weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
        kind([weight], fused=True).step()
    assert torch.equal(lain_otherwise, contiguous) is is_right


def test_sgd_too_steps_its_own_weight_whatever_the_memory_format_of_the_gradient() -> None:
    lain_otherwise, contiguous = nn.Parameter(_weights()[0].detach()), nn.Parameter(_weights()[0].detach().contiguous())
    for weight in (lain_otherwise, contiguous):
        weight.grad = torch.randn(weight.shape, generator=torch.Generator().manual_seed(0))
        SGD([weight], lr=0.1, momentum=0.9, nesterov=True, fused=True).step()
    assert torch.equal(lain_otherwise, contiguous)


def test_biases_of_norms_learn_faster_and_decay_as_the_others() -> None:
    model = models.build("resnet18", image_shape=(32, 32, 3), num_classes=10)
    main, biases = _sgd(model, norm_bias_scale=64.0).param_groups
    assert {id(weight) for weight in biases["params"]} == {
        id(module.bias) for module in model.modules() if isinstance(module, nn.BatchNorm2d)
    }
    assert len(main["params"]) + len(biases["params"]) == len(list(model.parameters()))
    assert biases["lr"] == 64 * main["lr"] and main["momentum"] == 0.85 and main["nesterov"]
    assert biases["lr"] * biases["weight_decay"] == pytest.approx(main["lr"] * main["weight_decay"])


def test_frozen_weights_are_not_given_to_sgd() -> None:
    model = models.build("airbench94", image_shape=(32, 32, 3), num_classes=10)
    given = [weight for group in _sgd(model, norm_bias_scale=64.0).param_groups for weight in group["params"]]
    assert all(weight.requires_grad for weight in given) and len(given) == 14


@pytest.mark.parametrize("total_steps", [1, 2, 3, 100])
def test_triangle_rises_from_a_fifth_to_the_peak_and_falls_to_seven_hundredths(total_steps: int) -> None:
    rates = _rates(total_steps, schedule="triangular", warmup_fraction=0.23)
    warmup = int(0.23 * total_steps)
    assert max(rates) == rates[warmup] == 1.0
    assert rates[0] == (0.2 if warmup else 1.0)
    assert rates == [*sorted(rates[:warmup]), *sorted(rates[warmup:], reverse=True)]
    assert rates[-1] <= 0.07 + 0.93 / (total_steps - warmup) + 1e-9


def test_one_cycle_of_sgd_keeps_its_momentum() -> None:
    optimizer = _sgd(nn.Linear(1, 1), momentum=0.8)
    schedule = make_schedule(training.recipe(optimizer="sgd"), optimizer, total_steps=10)
    optimizer.step()
    schedule.step()
    assert optimizer.param_groups[0]["momentum"] == 0.8


def _sgd(model: nn.Module, **changes: Any) -> torch.optim.Optimizer:
    return make_optimizer(training.recipe(**{"optimizer": "sgd", "momentum": 0.85} | changes), model)


def _rates(total_steps: int, **changes: Any) -> list[float]:
    """The learning rate of each step, relative to its peak."""
    recipe = training.recipe(optimizer="sgd", learning_rate=2.0, **changes)
    optimizer = make_optimizer(recipe, nn.Linear(1, 1))
    schedule = make_schedule(recipe, optimizer, total_steps=total_steps)
    rates = list[float]()
    for _ in range(total_steps):
        rates.append(float(schedule.get_last_lr()[0]) / 2.0)
        optimizer.step()
        schedule.step()
    return rates


def _after_steps(kind: type[torch.optim.AdamW]) -> tuple[list[Tensor], dict[int, dict[str, Tensor]]]:
    weights = _weights()
    optimizer = kind(weights, lr=0.01, weight_decay=0.1, fused=True)
    for step in range(5):
        _give_gradients(weights, step=step)
        optimizer.step()
    return [weight.detach() for weight in weights], optimizer.state_dict()["state"]


def _weights() -> list[nn.Parameter]:
    """Of convolutions in channels last, one of a number that fills no vector; of a layer and its bias."""
    torch.manual_seed(0)
    shapes = [(16, 8, 3, 3), (10, 3, 3, 3), (16, 8, 1, 1), (8, 1, 7, 7), (10, 16), (10,)]
    tensors = [torch.randn(shape) for shape in shapes]
    return [nn.Parameter(each.to(memory_format=torch.channels_last) if each.dim() == 4 else each) for each in tensors]


def _give_gradients(weights: list[nn.Parameter], *, step: int) -> None:
    """To each in its own memory format, but in step 3 to one of them none."""
    torch.manual_seed(step + 1)
    for weight in weights:
        weight.grad = torch.empty_like(weight).copy_(torch.randn(weight.shape))
    if step == 3:
        weights[1].grad = None
