"""Confident learning: an example by hand, and what cleanlab 2.9.0 finds in the same probabilities."""

import numpy as np

from tasks.auditing.confident_learning import judge, thresholds


def test_example_that_can_be_followed_by_hand() -> None:
    labels = np.array([0, 0, 0, 1, 1, 1])
    of_first = np.array([0.9, 0.8, 0.1, 0.2, 0.7, 0.1])
    probabilities = np.stack([of_first, 1 - of_first], axis=1)
    usual = thresholds([(labels[:4], probabilities[:4]), (labels[4:], probabilities[4:])], num_classes=2)
    np.testing.assert_allclose(usual, [(0.9 + 0.8 + 0.1) / 3, (0.8 + 0.3 + 0.9) / 3])
    likely, is_sure = judge(labels, probabilities, usual)
    assert likely.tolist() == [1, 1, 1, 0, 0, 0]
    assert is_sure.tolist() == [False, False, True, False, True, False]
    of_first[4] = 0.55  # less than the 0.6 that rows of the first class usually have
    _, is_sure = judge(labels, np.stack([of_first, 1 - of_first], axis=1), usual)
    assert is_sure.tolist() == [False, False, True, False, False, False]


def test_suspects_that_are_sure_are_those_that_cleanlab_finds() -> None:
    """`cleanlab.filter.find_label_issues(labels, probabilities, filter_by="confident_learning")`, of 2.9.0."""
    random = np.random.default_rng(0)
    true = random.integers(0, 3, 200)
    labels = np.where(random.random(200) < 0.2, random.integers(0, 3, 200), true)
    logits = random.normal(0, 1, (200, 3))
    logits[np.arange(200), true] += 2.5
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    usual = thresholds([(labels, probabilities)], num_classes=3)
    _, is_sure = judge(labels, probabilities, usual)
    assert np.flatnonzero(is_sure).tolist() == [
        *(17, 19, 43, 46, 50, 57, 59, 73, 85, 107, 114, 123, 127, 134, 148, 157, 167, 191)
    ]


def test_class_without_rows_is_nobodys_likely_class_for_sure() -> None:
    labels, probabilities = np.array([0, 1]), np.array([[0.1, 0.1, 0.8], [0.1, 0.8, 0.1]])
    usual = thresholds([(labels, probabilities)], num_classes=3)
    likely, is_sure = judge(labels, probabilities, usual)
    assert usual[2] == np.inf and likely.tolist() == [2, 0] and not is_sure.any()
