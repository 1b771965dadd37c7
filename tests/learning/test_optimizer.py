"""AdamW for weights in channels last: torch's own bits, without its mistake."""

import pytest
import torch
from torch import Tensor, nn

from tasks.learning.optimizer import AdamW


def test_weights_and_state_are_to_the_bit_those_of_torchs_adamw() -> None:
    some, state = _after_steps(AdamW)
    others, others_state = _after_steps(torch.optim.AdamW)
    assert all(torch.equal(one, other) for one, other in zip(some, others, strict=True))
    for number, values in others_state.items():
        assert all(torch.equal(state[number][name], value) for name, value in values.items())
        assert all(state[number][name].stride() == value.stride() for name, value in values.items())


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
