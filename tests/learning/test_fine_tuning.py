"""Fine-tuning: the head first, a lower learning rate for the backbone, and what a resumed run ends with."""

from pathlib import Path
from typing import Any

import pytest
import torch

from storage.uri import URI
from tasks.learning import checkpoint, training_state
from tasks.learning.epoch_metrics import EpochMetrics
from tasks.learning.loop import Trainer
from tasks.learning.sources import Split
from tests.learning import training
from tests.learning.training import same, weights

pytestmark = pytest.mark.usefixtures("one_thread", "small_model")

FIELDS: dict[str, Any] = {"parameters": {}, "resolved": {}}
FROZEN: dict[str, Any] = {
    "model": "timm/mobilenetv3_small_050",
    "batch_size": 16,
    "start": "pretrained",
    "freeze_epochs": 2,
}
"""Two epochs of the head, one of everything; the model has batch normalization."""


def started(digits: dict[str, Split], **changes: Any) -> Trainer:
    """A run on 64 digits of three epochs, two of them frozen; a tenth of the learning rate for the backbone."""
    recipe = training.recipe(**{**FROZEN, "epochs": 3, "backbone_lr_scale": 0.1} | changes)
    return training.trainer(recipe, training.rows(digits["train"], 0, 64), training.rows(digits["test"], 0, 32))


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


@pytest.mark.parametrize(("after", "optimizer"), [(1, "adamw"), (2, "sgd")])
def test_fine_tuning_that_resumes_in_any_phase_is_equal_bit_by_bit(
    digits: dict[str, Split], tmp_path: Path, after: int, optimizer: str
) -> None:
    whole, resumed = (started(digits, epochs=4, optimizer=optimizer) for _ in range(2))
    history = list[EpochMetrics]()
    for epoch in (1, 2, 3, 4):
        history.append(whole.run_epoch(epoch))
        if epoch == after:
            snapshot = training_state.take(whole, history, prepared="0123456789ab", fields=FIELDS)
            checkpoint.write(URI(str(tmp_path)), snapshot)
    before = training_state.restore(tmp_path, resumed, prepared="0123456789ab", fields=FIELDS)
    assert [*before, *(resumed.run_epoch(epoch) for epoch in range(after + 1, 5))] == history
    assert same(weights(resumed), weights(whole))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"freeze_epochs": 4}, "freeze_epochs must be <= 3, the number of epochs, got 4"),
        ({"start": "random"}, "freeze_epochs must be 0 with start=random, .*, got 2; choose another start, or add"),
        ({"backbone_lr_scale": 0.0}, "backbone_lr_scale must be greater than 0, got 0.0"),
    ],
)
def test_settings_that_mean_nothing_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        training.recipe(**{**FROZEN, "epochs": 3} | changes)


def test_a_model_that_does_not_say_where_its_head_is_cannot_be_frozen(digits: dict[str, Split]) -> None:
    with pytest.raises(ValueError, match="model Sequential does not say where its one head is; give it an attribute"):
        started(digits, model="small")
