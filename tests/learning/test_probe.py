"""A probe is the logistic regression that it says, and judges each row without having seen it."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from tasks.learning import probe
from tasks.learning.probe import Probe


def rows(num_rows: int, *, num_classes: int = 3, dimensions: int = 40, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Embeddings that overlap, and their labels; each class has a row."""
    random = np.random.default_rng(seed)
    labels = np.arange(num_rows) % num_classes
    centers = random.normal(size=(num_classes, dimensions))
    return (3 + centers[labels] + 2 * random.normal(size=(num_rows, dimensions))).astype(np.float16), labels


def bits(fitted: Probe) -> tuple[bytes, bytes, bytes]:
    return fitted.weights.tobytes(), fitted.bias.tobytes(), fitted.out_of_fold.tobytes()


@pytest.mark.parametrize("num_classes", [2, 3])
@pytest.mark.parametrize("num_rows", [30, 300], ids=["fewer rows than dimensions", "more"])
def test_fit_is_the_regression_of_scikit_learn_on_standardized_embeddings(num_rows: int, num_classes: int) -> None:
    embeddings, labels = rows(num_rows, num_classes=num_classes)
    fitted = probe.fit(embeddings, labels)
    scaled = embeddings.astype(np.float64)
    scaled = (scaled - scaled.mean(0)) / scaled.std(0)
    reference = LogisticRegression(C=1 / fitted.penalty, tol=1e-8, max_iter=10_000).fit(scaled, labels)
    logits = fitted.logits(embeddings)
    shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    np.testing.assert_allclose(shares, reference.predict_proba(scaled), atol=2e-3)


def test_penalty_is_stronger_where_rows_are_fewer_and_noise_is_larger() -> None:
    embeddings, labels = rows(600)
    noise = np.random.default_rng(1).permutation(labels)
    assert probe.fit(embeddings, noise).penalty > probe.fit(embeddings, labels).penalty


def test_rows_of_one_group_are_judged_without_each_other() -> None:
    embeddings, labels = rows(60)
    embeddings, labels = np.repeat(embeddings, 2, axis=0), np.repeat(labels, 2)
    labels[1] = (labels[0] + 1) % 3  # a copy whose label differs
    together = probe.fit(embeddings, labels, groups=np.arange(120) // 2)
    np.testing.assert_array_equal(together.out_of_fold[0], together.out_of_fold[1])


def test_a_class_with_one_row_and_a_class_with_two_are_judged() -> None:
    embeddings, labels = rows(60)
    labels = np.where(np.arange(60) == 7, 3, np.where(np.arange(60) < 2, 4, labels))
    fitted = probe.fit(embeddings, labels)
    assert fitted.weights.shape == (5, 40) and np.isfinite(fitted.out_of_fold).all()
    assert fitted.out_of_fold[7].argmax() != 3, "nothing else is of its class"
    assert np.flatnonzero(~fitted.is_judged).tolist() == [7]


def test_a_thousand_classes_of_a_few_rows_are_spread_over_the_folds() -> None:
    labels = np.repeat(np.arange(1000), 3)
    fold = probe.folds(labels, np.arange(3000))
    assert np.bincount(fold).tolist() == [600] * 5
    assert all(len(set(fold[labels == number])) == 3 for number in range(1000))


def test_number_of_threads_changes_no_bit() -> None:
    embeddings, labels = rows(300)
    assert bits(probe.fit(embeddings, labels, threads=1)) == bits(probe.fit(embeddings, labels, threads=3))


def test_balanced_weights_raise_the_recall_of_a_rare_class() -> None:
    embeddings, labels = rows(600, num_classes=2)
    kept = (labels == 0) | (np.arange(600) < 60)
    embeddings, labels = embeddings[kept], labels[kept]
    counts = np.bincount(labels)
    plain = probe.fit(embeddings, labels)
    balanced = probe.fit(embeddings, labels, class_weights=(len(labels) / (2 * counts)).tolist())
    of_rare = [(each.out_of_fold.argmax(1) == 1)[labels == 1].mean() for each in (plain, balanced)]
    assert of_rare[0] < of_rare[1]
