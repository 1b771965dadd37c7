"""Metrics of a classifier, computed from its predictions alone."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from storage.statistics import Metrics

_CALIBRATION_BINS = 15  # number of bins as in Guo et al. 2017, On Calibration of Modern Neural Networks


def in_order(probabilities: np.ndarray, known: Sequence[str], classes: Sequence[str]) -> np.ndarray:
    """Reorder probabilities (N, known) to the columns `classes`, with 0 for classes that the model does not know."""
    ordered = np.zeros((len(probabilities), len(classes)), probabilities.dtype)
    ordered[:, [classes.index(name) for name in known]] = probabilities
    return ordered


def at_power(probabilities: np.ndarray, power: float) -> np.ndarray:
    """Raise probabilities (N, classes) to `power`, a temperature; so they are as without it."""
    raised = np.maximum(probabilities.astype(np.float64), np.finfo(np.float32).tiny) ** power
    return np.asarray(raised / raised.sum(1, keepdims=True))


def summary(labels: np.ndarray, predictions: np.ndarray, probabilities: np.ndarray) -> Metrics:
    """Compute all metrics of `predictions` (N,) and `probabilities` (N, classes) for `labels` (N,)."""
    own = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    bins = calibration(predictions == labels, probabilities.max(1))
    gaps = [row["count"] * abs(row["confidence"] - row["accuracy"]) for row in bins if row["count"]]
    return Metrics(
        **scores(labels, predictions, num_classes=probabilities.shape[1]),
        test_loss=float(-np.log(np.maximum(own, np.finfo(np.float32).tiny)).mean()),
        expected_calibration_error=float(sum(gaps) / sum(row["count"] for row in bins)),
        num_rows=len(labels),
    )


def scores(labels: np.ndarray, predictions: np.ndarray, *, num_classes: int) -> dict[str, float]:
    """Compute the metrics that a gate may use; a prediction below 0 is of no class of the rows.

    Balanced accuracy is the mean recall, macro F1 the mean F1, both over the classes that have rows. That is
    scikit-learn's `balanced_accuracy_score`, and its `f1_score` with `average="macro"` and these classes as `labels`;
    by default scikit-learn adds a 0 for each class that was predicted and has no rows.
    """
    hits, known = labels[predictions == labels], predictions[predictions >= 0]
    counts = [np.bincount(classes, minlength=num_classes) for classes in (hits, labels, known)]
    return {name: float(value) for name, value in scores_of_counts(*counts).items()}


def scores_of_counts(hits: np.ndarray, rows: np.ndarray, predicted: np.ndarray) -> dict[str, np.ndarray]:
    """Compute the same from the numbers (..., classes) of correct rows, of rows, and of predictions of each class."""
    num_classes = np.maximum(1, (rows > 0).sum(-1))
    return {
        "test_accuracy": hits.sum(-1) / rows.sum(-1),
        "balanced_accuracy": (hits / np.maximum(1, rows)).sum(-1) / num_classes,
        "macro_f1": (2 * hits / np.maximum(1, rows + predicted)).sum(-1) / num_classes,
    }


def confusion(labels: np.ndarray, predictions: np.ndarray, *, num_classes: int) -> np.ndarray:
    """Compute the confusion matrix: int64 counts of shape (true class, predicted class)."""
    return np.bincount(labels * num_classes + predictions, minlength=num_classes**2).reshape(num_classes, num_classes)


def per_class(counts: np.ndarray, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Compute precision, recall, F1 and support of every class from the confusion matrix; 0 instead of 0/0."""
    right, support = np.diag(counts), counts.sum(1)
    precision, recall = right / np.maximum(1, counts.sum(0)), right / np.maximum(1, support)
    f1 = 2 * precision * recall / np.where(precision + recall > 0, precision + recall, 1)
    return _records(class_name=np.array(classes, object), precision=precision, recall=recall, f1=f1, support=support)


def _records(**columns: np.ndarray) -> list[dict[str, Any]]:
    """Return a dictionary for each row of the columns, with Python's own numbers."""
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [dict(zip(columns, row, strict=True)) for row in rows]


def calibration(is_right: np.ndarray, confidence: np.ndarray) -> list[dict[str, Any]]:
    """Compute bounds, count, mean confidence and accuracy for each of 15 equal bins of the predicted probability."""
    confidence = confidence.astype(np.float64)
    edges = np.linspace(0, 1, _CALIBRATION_BINS + 1)
    index = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, _CALIBRATION_BINS - 1)
    return [
        {
            "lower": float(edges[i]),
            "upper": float(edges[i + 1]),
            "count": int(in_bin.sum()),
            "confidence": float(confidence[in_bin].mean()) if in_bin.any() else 0.0,
            "accuracy": float(is_right[in_bin].mean()) if in_bin.any() else 0.0,
        }
        for i, in_bin in enumerate(index == i for i in range(_CALIBRATION_BINS))
    ]


def wilson(share: float, count: int) -> tuple[float, float]:
    """Return the 95 % Wilson interval (1927) of a share of `count` rows; also valid for few rows and near 0 and 1."""
    z = 1.96
    middle = (share + z * z / (2 * count)) / (1 + z * z / count)
    half = z / (1 + z * z / count) * math.sqrt(share * (1 - share) / count + (z / (2 * count)) ** 2)
    return middle - half, middle + half


def coverage(is_right: np.ndarray, confidence: np.ndarray) -> list[dict[str, Any]]:
    """Count for each confidence from 0 to 0.99 the rows with at least this probability, and those that are correct."""
    order = np.argsort(confidence)
    right = np.append(np.cumsum(is_right[order][::-1])[::-1], 0)
    steps = np.arange(100) / 100
    first = np.searchsorted(confidence[order], steps.astype(confidence.dtype))
    return _records(confidence=steps, rows=len(order) - first, right=right[first])


def kept_by_distance(is_right: np.ndarray, distance: np.ndarray) -> list[dict[str, Any]]:
    """Count right and wrong rows up to the distances (float32) that keep 100, 99, 95 and 90 % of all rows."""
    limits = np.quantile(distance, (1, 0.99, 0.95, 0.9), method="higher")
    right, wrong = ((distance[rows, None] <= limits).sum(0) for rows in (is_right, ~is_right))
    return _records(distance=limits.astype(str).astype(float), right=right, wrong=wrong)


def worst(
    ids: np.ndarray, labels: np.ndarray, predictions: np.ndarray, confidence: np.ndarray, *, count: int
) -> list[dict[str, Any]]:
    """Return up to `count` mistakes, those with the highest predicted probability first."""
    mistakes = np.flatnonzero(predictions != labels)
    order = mistakes[np.lexsort((ids[mistakes], -confidence[mistakes]))][:count]
    return _records(id=ids[order], label=labels[order], prediction=predictions[order], probability=confidence[order])
