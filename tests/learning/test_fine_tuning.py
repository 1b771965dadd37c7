"""Fine-tuning: the head first, a lower learning rate for the backbone; `test_resume.py` interrupts it."""

from typing import Any

import pytest
import torch

from tasks.learning.loop import Trainer
from tasks.learning.sources import Split
from tests.learning import training
from tests.learning.training import weights

pytestmark = pytest.mark.usefixtures("one_thread", "more_models")

FROZEN: dict[str, Any] = {
    "model": "timm/mobilenetv3_small_050",
    "batch_size": 16,
    "start": "pretrained",
    "freeze_epochs": 2,
}
"""Two epochs of the head, one of everything; the model has batch normalization."""


def started(digits: dict[str, Split], **changes: Any) -> Trainer:
    """A run on 64 digits of three epochs, two of them frozen; a tenth of the learning rate for the backbone."""
    return training.small(digits, **{**FROZEN, "epochs": 3, "backbone_lr_scale": 0.1} | changes)


def changed(before: dict[str, torch.Tensor], after: dict[str, torch.Tensor]) -> set[str]:
    """The tensors that differ."""
    return {name for name in before if not torch.equal(before[name], after[name])}


def test_frozen_backbone_keeps_its_weights_and_statistics(digits: dict[str, Split]) -> None:
    trainer = started(digits, optimizer="sgd")
    states, rates = [weights(trainer)], list[tuple[float, float]]()
    for epoch in (1, 2, 3):
        metrics = trainer.run_epoch(epoch)
        states.append(weights(trainer))
        rates.append((metrics.backbone_learning_rate, metrics.learning_rate))
    head = {"backbone.classifier.weight", "backbone.classifier.bias"}
    assert changed(states[0], states[1]) == changed(states[1], states[2]) == head
    assert changed(states[2], states[3]) == states[0].keys() - {"mean", "std"}
    assert [rate for rate, _ in rates[:2]] == [0, 0] and rates[2][0] == pytest.approx(0.1 * rates[2][1])


def test_scale_applies_in_every_epoch_to_the_backbone_alone(digits: dict[str, Split]) -> None:
    trainer = started(digits, freeze_epochs=0, epochs=1)
    head, backbone = trainer.optimizer.param_groups
    assert [len(group["params"]) for group in (head, backbone)] == [2, len(list(trainer.model.parameters())) - 2]
    metrics = trainer.run_epoch(1)
    assert 0 < metrics.backbone_learning_rate == pytest.approx(0.1 * metrics.learning_rate)


def test_a_model_that_does_not_say_where_its_head_is_cannot_be_frozen(digits: dict[str, Split]) -> None:
    with pytest.raises(ValueError, match="model Sequential does not say where its one head is; give it an attribute"):
        started(digits, model="small")
