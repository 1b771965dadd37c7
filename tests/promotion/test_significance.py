"""The exact test of two models: McNemar's for accuracy, honest about a few rows of a rare class for all metrics."""

import itertools
import math

import numpy as np
import pytest

from tasks.promotion.significance import interval, mcnemar_test, swap_test

LABELS = np.repeat([0, 1], [200, 20])


def answers(generator: np.random.Generator, *recalls: float) -> np.ndarray:
    """Predictions on `LABELS` that are right as often as the recall of each class says."""
    return np.where(generator.random(len(LABELS)) < np.array(recalls)[LABELS], LABELS, 1 - LABELS)


def p_value(first: np.ndarray, second: np.ndarray, name: str, labels: np.ndarray = LABELS) -> float:
    return swap_test(np.stack([labels, first, second]), name=name, num_classes=int(labels.max()) + 1)


def test_the_p_value_is_the_share_of_all_outcomes_that_are_as_uneven_or_more_also_of_many_rows() -> None:
    for better, worse in ((0, 0), (0, 1), (3, 3), (6, 0), (7, 4)):
        uneven = [abs(sum(signs)) >= abs(better - worse) for signs in itertools.product((1, -1), repeat=better + worse)]
        assert mcnemar_test(better, worse) == pytest.approx(sum(uneven) / len(uneven))
    assert mcnemar_test(5_000, 5_000) == 1.0
    assert mcnemar_test(10_000, 9_000) == pytest.approx(
        math.erfc(999 / math.sqrt(2 * 19_000)), rel=0.02
    )  # of the normal
    assert 0 < mcnemar_test(600, 0) < 1e-170


@pytest.mark.parametrize("num_rows", [20, 60])
@pytest.mark.parametrize(("better", "worse"), [(0.1, 0.1), (0.05, 0.02), (0.3, 0.05)])
def test_the_interval_holds_the_true_difference_about_95_times_in_100(
    num_rows: int, better: float, worse: float
) -> None:
    covered = 0.0
    for first in range(num_rows + 1):
        for second in range(num_rows + 1 - first):
            ways = math.comb(num_rows, first) * math.comb(num_rows - first, second)
            chance = ways * better**first * worse**second * (1 - better - worse) ** (num_rows - first - second)
            lower, upper = interval(first, second, num_rows=num_rows)
            covered += chance * (lower <= better - worse <= upper)
    assert 0.935 < covered < 1, "for few rows rather too wide than too narrow"


@pytest.mark.parametrize("name", ["test_accuracy", "balanced_accuracy", "macro_f1"])
def test_models_differ_significantly_on_enough_rows_and_never_on_three(name: str) -> None:
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
    first, second = answers(generator, 0.9, 0.9), answers(generator, 0.8, 0.9)
    better, worse = (int(((a == LABELS) & (b != LABELS)).sum()) for a, b in ((first, second), (second, first)))
    assert p_value(first, second, "test_accuracy") == pytest.approx(mcnemar_test(better, worse))


@pytest.mark.parametrize("recalls", [(0.8, 0.6), (1.0, 0.5)])
def test_equally_good_models_of_a_skewed_set_differ_significantly_in_at_most_one_of_twenty_pairs(
    recalls: tuple[float, float],
) -> None:
    generator = np.random.default_rng(0)
    pairs = [(answers(generator, *recalls), answers(generator, *recalls)) for _ in range(400)]
    assert sum(p_value(*pair, "balanced_accuracy") <= 0.05 for pair in pairs) <= 0.06 * len(pairs)
