"""Confident learning: rows whose label is probably wrong, from out-of-fold probabilities (Northcutt et al. 2021)."""

from collections.abc import Iterable

import numpy as np

Batch = tuple[np.ndarray, np.ndarray]
"""Labels, int64 (N,), and the probabilities of all classes, (N, classes), by a model that was not trained on the rows.
"""


def thresholds(batches: Iterable[Batch], *, num_classes: int) -> np.ndarray:
    """Return how certain the model usually is of each class: its mean probability on the rows labelled so, (classes,).

    Infinite for a class without rows.
    """
    sums, counts = np.zeros(num_classes), np.zeros(num_classes, np.int64)
    for labels, probabilities in batches:
        own = probabilities[np.arange(len(labels)), labels].astype(np.float64)
        sums += np.bincount(labels, own, num_classes)
        counts += np.bincount(labels, minlength=num_classes)
    means = np.full(num_classes, np.inf)
    np.divide(sums, counts, out=means, where=counts > 0)
    return means


def judge(labels: np.ndarray, probabilities: np.ndarray, thresholds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return each row's likeliest class other than its label, int64 (N,), and whether that is surely the right one.

    It is if the model prefers another class than the label and is as certain of one as it usually is: then the row
    counts off the diagonal of the confident joint, in the most probable such class.
    """
    is_certain = probabilities >= thresholds
    certain = np.where(is_certain, probabilities, -1).argmax(1)
    is_sure = is_certain.any(1) & (certain != labels) & (probabilities.argmax(1) != labels)
    others = probabilities.copy()
    others[np.arange(len(labels)), labels] = -1
    return np.where(is_sure, certain, others.argmax(1)), is_sure
