"""The temperature of probabilities: it is found, it is finite, and it changes no class."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from tasks.learning.temperature import fit_temperature


def rows(count: int, *, times: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits and labels that are drawn by their probabilities; then the logits are multiplied by `times`."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(count, 5, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    return times * logits, labels


@pytest.mark.parametrize("times", [0.5, 1.0, 3.0])
def test_temperature_undoes_wrong_confidence(times: float) -> None:
    logits, labels = rows(20_000, times=times)
    temperature = float(fit_temperature(logits, labels))
    assert temperature == pytest.approx(times, rel=0.03)
    assert torch.equal((logits / temperature).argmax(1), logits.argmax(1))
    if times != 1:
        assert cross_entropy(logits / temperature, labels) < cross_entropy(logits, labels) - 0.05


def test_rows_that_are_all_right_do_not_make_every_probability_one() -> None:
    labels = torch.arange(30) % 3
    logits = torch.nn.functional.one_hot(labels, 3).float()
    temperature = float(fit_temperature(logits, labels))
    assert 0.6 < float((logits / temperature).softmax(1).max()) < 0.9


def test_few_rows_change_probabilities_little_and_none_keep_them() -> None:
    temperatures = [float(fit_temperature(*rows(count, times=3.0))) for count in (20, 100, 1000)]
    assert 1 < temperatures[0] < 1.3 < temperatures[1] < 2.2 < 2.5 < temperatures[2] < 3
    assert float(fit_temperature(torch.empty(0, 5), torch.empty(0, dtype=torch.int64))) == 1
