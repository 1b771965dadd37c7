"""The exact test of two models: McNemar's for accuracy, honest about a few rows of a rare class for all metrics."""

import numpy as np
import pytest

from storage import decision
from tasks.promotion import swap_test

LABELS = np.repeat([0, 1], [200, 20])


def answers(generator: np.random.Generator, *recalls: float) -> np.ndarray:
    """Predictions on `LABELS` that are right as often as the recall of each class says."""
    return np.where(generator.random(len(LABELS)) < np.array(recalls)[LABELS], LABELS, 1 - LABELS)


def p_value(ours: np.ndarray, theirs: np.ndarray, name: str, labels: np.ndarray = LABELS) -> float:
    return swap_test.p_value(np.stack([labels, ours, theirs]), name=name, num_classes=int(labels.max()) + 1)


@pytest.mark.parametrize("name", ["test_accuracy", "balanced_accuracy", "macro_f1"])
def test_models_are_told_apart_by_enough_rows_and_never_by_three(name: str) -> None:
    generator = np.random.default_rng(0)
    good, poor = answers(generator, 0.9, 0.9), answers(generator, 0.7, 0.3)
    assert p_value(good, good, name) == 1
    assert p_value(good, poor, name) == p_value(poor, good, name) < 0.001
    for num_rare, exact in ((3, 0.25), (4, 0.125), (6, 0.03125)):
        labels = np.repeat([0, 1], [60 - num_rare, num_rare])
        assert p_value(labels, np.zeros_like(labels), name, labels) == exact
    labels = np.arange(1000) % 10  # too many outcomes to enumerate
    half = np.where(np.arange(1000) < 500, labels, (labels + 1) % 10)
    assert p_value(labels, half, name, labels) < 0.05 / 500, "after 500 comparisons, too"


def test_for_accuracy_it_is_the_exact_mcnemar_test() -> None:
    generator = np.random.default_rng(0)
    ours, theirs = answers(generator, 0.9, 0.9), answers(generator, 0.8, 0.9)
    better, worse = (int(((a == LABELS) & (b != LABELS)).sum()) for a, b in ((ours, theirs), (theirs, ours)))
    assert p_value(ours, theirs, "test_accuracy") == pytest.approx(decision.p_value(better, worse))


@pytest.mark.parametrize("recalls", [(0.8, 0.6), (1.0, 0.5)])
def test_equally_good_models_of_a_skewed_set_differ_significantly_in_at_most_one_of_twenty_pairs(
    recalls: tuple[float, float],
) -> None:
    generator = np.random.default_rng(0)
    pairs = [(answers(generator, *recalls), answers(generator, *recalls)) for _ in range(400)]
    assert sum(p_value(*pair, "balanced_accuracy") <= 0.05 for pair in pairs) <= 0.06 * len(pairs)
