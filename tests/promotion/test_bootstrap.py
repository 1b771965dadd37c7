"""The paired bootstrap: the same each time, true to its metric, and rarely significant by chance."""

import numpy as np
import pytest

from tasks.learning import metrics
from tasks.promotion import bootstrap

LABELS = np.repeat([0, 1], [200, 20])


def answers(generator: np.random.Generator, *recalls: float) -> np.ndarray:
    """Predictions on `LABELS` that are right as often as the recall of each class says."""
    return np.where(generator.random(len(LABELS)) < np.array(recalls)[LABELS], LABELS, 1 - LABELS)


def compare(ours: np.ndarray, theirs: np.ndarray, name: str) -> dict[str, float]:
    return bootstrap.compare(np.stack([LABELS, ours, theirs]), name=name, num_classes=2)


@pytest.mark.parametrize("name", ["test_accuracy", "balanced_accuracy", "macro_f1"])
def test_equal_models_have_p_1_and_clearly_better_ones_a_small_p(name: str) -> None:
    generator = np.random.default_rng(0)
    good, poor = answers(generator, 0.9, 0.9), answers(generator, 0.7, 0.3)
    same, better, worse = (compare(ours, theirs, name) for ours, theirs in ((good, good), (good, poor), (poor, good)))
    assert same == {"difference": 0, "lower": 0, "upper": 0, "p_value": 1}
    assert better["p_value"] < 0.001 and better["lower"] > 0
    scores = [metrics.scores(LABELS, model, num_classes=2)[name] for model in (good, poor)]
    assert better["difference"] == pytest.approx(scores[0] - scores[1]) == -worse["difference"]
    assert better == compare(good, poor, name), "the seed is fixed"


def test_equally_good_models_of_a_skewed_set_differ_significantly_in_about_one_of_twenty_pairs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(bootstrap, "_NUM_RESAMPLES", 500)
    generator = np.random.default_rng(0)
    pairs = [(answers(generator, 0.8, 0.6), answers(generator, 0.8, 0.6)) for _ in range(400)]
    significant = sum(compare(*pair, "balanced_accuracy")["p_value"] <= 0.05 for pair in pairs)
    assert 0.025 < significant / len(pairs) < 0.085
