"""Probe: multinomial logistic regression on the embeddings of a frozen backbone, in float64."""

import dataclasses
import functools
from collections.abc import Sequence

import numpy as np
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression
from threadpoolctl import threadpool_limits

from storage import process

PENALTIES = tuple(10.0**exponent for exponent in (4, 3.5, 3, 2.5, 2, 1.5, 1, 0))
"""L2 penalties to choose from, the strongest first; scikit-learn's `C` is the inverse."""
FOLDS = 5
_MAX_ITERATIONS = 1000
_UNKNOWN = -30.0
"""Logit of a class without rows outside of the fold."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Probe:
    """A fitted probe."""

    weights: np.ndarray
    """float64 (classes, dimensions), of embeddings as they are."""
    bias: np.ndarray
    """float64 (classes,)."""
    penalty: float
    """The penalty with the lowest cross-validated loss."""
    out_of_fold: np.ndarray
    """Logits of each row by a probe that was fitted without the row's fold, float64 (N, classes)."""
    is_judged: np.ndarray
    """Whether another fold has rows of the row's class, bool (N,): without any, its logits say nothing of the probe."""

    def logits(self, embeddings: np.ndarray) -> np.ndarray:
        """Return the logits (float64, (N, classes)) of embeddings."""
        return np.asarray(embeddings.astype(np.float64) @ self.weights.T + self.bias)


def fit(
    embeddings: np.ndarray,
    labels: np.ndarray,
    *,
    groups: np.ndarray | None = None,
    class_weights: Sequence[float] | None = None,
    is_used: np.ndarray | None = None,
    penalties: Sequence[float] = PENALTIES,
    threads: int = 1,
) -> Probe:
    """Fit a probe; its penalty is the one with the lowest loss in a cross-validation of five folds.

    One thread computes a fold, so that the number of cores changes no bit.

    Args:
        embeddings: float (N, dimensions).
        labels: int64 (N,), from 0; each class has a row.
        groups: int64 (N,): rows of one group are in one fold; None: each row is its own.
        class_weights: Weight of a row of each class; None: 1.
        is_used: Rows to fit it to, bool (N,); the cross-validation judges the others, too. None: all.
        penalties: What to choose from, the strongest first.
        threads: Folds to fit at once.
    """
    features = embeddings.astype(np.float64)
    mean, scale = mean_and_scale(features)
    features -= mean
    features /= scale
    row_weights = np.ones(len(labels)) if class_weights is None else np.asarray(class_weights)[labels]
    fold_of_row = folds(labels, np.arange(len(labels)) if groups is None else groups)
    used = np.full(len(labels), True) if is_used is None else is_used
    num_classes = int(labels.max()) + 1
    counts = np.zeros((num_classes, FOLDS), np.int64)
    np.add.at(counts, (labels[used], fold_of_row[used]), 1)
    is_judged = counts.sum(1)[labels] > counts[labels, fold_of_row]
    with threadpool_limits(1):
        # L2-regularized fits are the same in rotated coordinates, of which there are no more than rows.
        is_wide = features.shape[0] < features.shape[1]
        rotation = np.linalg.svd(features, full_matrices=False)[2].T if is_wide else None
        rotated = features if rotation is None else features @ rotation
        in_fold = [fold_of_row == fold for fold in range(FOLDS)]
        fits = [_Fit(rotated, labels, row_weights, used & ~others, others) for others in in_fold]
        best, lowest, out_of_fold = penalties[0], np.inf, np.zeros((len(labels), num_classes))
        for penalty in penalties:
            others, predicted = functools.partial(_Fit.others, penalty=penalty), np.zeros_like(out_of_fold)
            for fold, logits in enumerate(process.in_threads(others, fits, threads=threads)):
                predicted[in_fold[fold]] = logits
            loss = float((row_weights * cross_entropy(predicted, labels))[is_judged].sum())
            if loss >= lowest:
                break
            best, lowest, out_of_fold = penalty, loss, predicted
        weights, bias = _Fit(rotated, labels, row_weights, used, ~used).fitted(best, tolerance=1e-6)
        weights = (weights if rotation is None else weights @ rotation.T) / scale
        bias = bias - weights @ mean
    return Probe(weights=weights, bias=bias, penalty=best, out_of_fold=out_of_fold, is_judged=is_judged)


def mean_and_scale(features: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return mean and deviation of each dimension of float64 (N, dimensions); 1 for a constant one."""
    deviation = features.std(0)
    return features.mean(0), np.where(deviation > 0, deviation, 1)


def folds(labels: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return the fold of each row, int64 (N,): each class is spread over the folds, groups stay together.

    A group counts for the class of its first row.
    """
    _, first, number = np.unique(groups, return_index=True, return_inverse=True)
    of_group = labels[first]
    order = np.lexsort((first, of_group))
    fold = np.empty(len(first), np.int64)
    fold[order] = np.arange(len(first)) % FOLDS
    return np.asarray(fold[number])


class _Fit:
    """Fits on the rows `is_in`, one penalty after the other, each from the result before."""

    def __init__(
        self, features: np.ndarray, labels: np.ndarray, row_weights: np.ndarray, is_in: np.ndarray, others: np.ndarray
    ) -> None:
        self._features, self._is_in, self._others = features, is_in, others  # copies would take five times the memory
        self._labels, self._row_weights = labels[is_in], row_weights[is_in]
        self._present, self._num_classes = np.unique(self._labels), int(labels.max()) + 1
        self._regression = LogisticRegression(max_iter=_MAX_ITERATIONS, warm_start=True)

    def others(self, penalty: float) -> np.ndarray:
        weights, bias = self.fitted(penalty)
        return np.asarray(self._features[self._others] @ weights.T + bias)

    def fitted(self, penalty: float, *, tolerance: float = 1e-4) -> tuple[np.ndarray, np.ndarray]:
        """Return weights (classes, features) and bias (classes,)."""
        weights = np.zeros((self._num_classes, self._features.shape[1]))
        bias = np.full(self._num_classes, _UNKNOWN)
        if len(self._present) < 2:
            bias[self._present] = 0
            return weights, bias
        regression = self._regression.set_params(C=1 / penalty, tol=tolerance)
        regression.fit(self._features[self._is_in], self._labels, sample_weight=self._row_weights)
        coefficients, intercepts = regression.coef_, regression.intercept_
        if len(self._present) == 2:  # scikit-learn has one row for two classes
            both = np.array([[-0.5], [0.5]])
            coefficients, intercepts = both * coefficients, (both * intercepts)[:, 0]
        weights[self._present], bias[self._present] = coefficients, intercepts
        return weights, bias


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    return np.asarray(-log_softmax(logits, axis=1)[np.arange(len(labels)), labels])
