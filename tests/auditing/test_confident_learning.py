"""Confident learning: an example by hand, and wrong labels that are told from the mistakes of the model itself."""

import numpy as np
import pytest

from tasks.auditing.confident_learning import LabelNoise, fit

CLASSES = 5


def test_example_that_can_be_followed_by_hand() -> None:
    noise = LabelNoise(rate=0.1, temperature=1.0)
    own = np.array([1.0, 0.5, 0.1, 0.0])
    # Of three classes, 0.1 / 2 of the labels that should be another class are this one, and 0.9 of those that should.
    expected = [0, 0.05 * 0.5 / (0.05 * 0.5 + 0.9 * 0.5), 0.05 * 0.9 / (0.05 * 0.9 + 0.9 * 0.1), 1]
    np.testing.assert_allclose(noise.wrong(own, num_classes=3), expected)
    halved = LabelNoise(rate=0.1, temperature=0.5).tempered(np.array([[0.8, 0.2], [0.5, 0.5]]))
    np.testing.assert_allclose(halved, [[0.64 / 0.68, 0.04 / 0.68], [0.5, 0.5]])


def rows(rate: float, *, sharpness: float, count: int = 6000) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Labels, what a model says of the true classes, which is calibrated, and which labels were changed."""
    draw = np.random.default_rng(1)
    logits = sharpness * draw.normal(0, 1, (count, CLASSES))
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    true = (draw.random(count)[:, None] > probabilities.cumsum(1)).sum(1).clip(max=CLASSES - 1)
    is_changed = draw.random(count) < rate
    return (true + is_changed * draw.integers(1, CLASSES, count)) % CLASSES, probabilities, is_changed


@pytest.mark.parametrize("rate", [0.01, 0.03, 0.2])
@pytest.mark.parametrize("temperature", [0.5, 3.0])
def test_share_of_changed_labels_and_temperature_are_found(rate: float, temperature: float) -> None:
    labels, probabilities, _ = rows(rate, sharpness=8)
    cooled = probabilities ** (1 / temperature)
    noise = fit(labels, (cooled / cooled.sum(1, keepdims=True)).astype(np.float32))
    assert noise.rate == pytest.approx(rate, rel=0.25)
    assert noise.temperature == pytest.approx(1 / temperature, rel=0.15)


def test_changed_labels_are_told_from_mistakes_of_the_model() -> None:
    labels, probabilities, is_changed = rows(0.03, sharpness=8)
    assert (probabilities.argmax(1) != labels).mean() - 0.03 > 0.07, "almost three times as many mistakes"
    noise = fit(labels, probabilities)
    own = noise.tempered(probabilities)[np.arange(len(labels)), labels]
    is_wrong = noise.wrong(own, num_classes=CLASSES) > 0.5
    right = (is_wrong & is_changed).sum()
    assert right >= 0.8 * is_wrong.sum() and right >= 0.6 * is_changed.sum(), "thresholds find 0.54 and 0.75"
    assert not is_wrong[probabilities.argmax(1) == labels].any()


def test_clean_labels_have_no_suspects() -> None:
    labels, probabilities, _ = rows(0, sharpness=8)
    noise = fit(labels, probabilities)
    own = noise.tempered(probabilities)[np.arange(len(labels)), labels]
    assert noise.rate < 0.002 and (noise.wrong(own, num_classes=CLASSES) > 0.5).sum() <= 2


@pytest.mark.parametrize("classes", [2, 10])
@pytest.mark.parametrize("sharpness", [0.0, 1.0, 4.0])
def test_a_model_that_knows_nothing_calls_no_label_wrong(classes: int, sharpness: float) -> None:
    draw = np.random.default_rng(3)
    logits = sharpness * draw.normal(0, 1, (1000, classes))
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    assert fit(draw.integers(0, classes, 1000), probabilities).rate == 0


def test_a_weak_model_calls_no_label_wrong_where_none_is() -> None:
    rates = []
    for seed in range(20):
        draw = np.random.default_rng(seed)
        share = 1 / (1 + np.exp(-0.4 * draw.normal(0, 1, 1000)))
        labels = (draw.random(1000) < share).astype(int)
        rates.append(fit(labels, np.stack([1 - share, share], axis=1)).rate)
    assert sum(rate > 0 for rate in rates) <= 2, rates
