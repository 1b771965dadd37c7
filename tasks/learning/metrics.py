"""Metrics of a classifier, computed from its predictions alone."""

from collections.abc import Sequence
from typing import Any

import numpy as np

_CALIBRATION_BINS = 15  # number of bins as in Guo et al. 2017, On Calibration of Modern Neural Networks


def in_order(probabilities: np.ndarray, known: Sequence[str], classes: Sequence[str]) -> np.ndarray:
    """Reorder probabilities (N, known) to the columns `classes`, with 0 for classes that the model does not know."""
    found = np.zeros((len(probabilities), len(classes)), probabilities.dtype)
    found[:, [classes.index(name) for name in known]] = probabilities
    return found


def summary(labels: np.ndarray, probabilities: np.ndarray) -> dict[str, float | int]:
    """Compute accuracy, cross-entropy and calibration error of `probabilities` (N, classes) for `labels` (N,)."""
    own = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    bins = calibration(labels, probabilities)
    gaps = [bin_["count"] * abs(bin_["confidence"] - bin_["accuracy"]) for bin_ in bins if bin_["count"]]
    return {
        "num_rows": len(labels),
        "test_accuracy": float((probabilities.argmax(1) == labels).mean()),
        "test_loss": float(-np.log(np.maximum(own, np.finfo(np.float32).tiny)).mean()),
        "expected_calibration_error": float(sum(gaps) / len(labels)),
    }


def confusion(labels: np.ndarray, predictions: np.ndarray, *, num_classes: int) -> np.ndarray:
    """Compute the confusion matrix: int64 counts of shape (true class, predicted class)."""
    return np.bincount(labels * num_classes + predictions, minlength=num_classes**2).reshape(num_classes, num_classes)


def per_class(counts: np.ndarray, classes: Sequence[str]) -> list[dict[str, Any]]:
    """Compute precision, recall, F1 and support of every class from the confusion matrix; 0 instead of 0/0."""
    right = np.diag(counts)
    precision = right / np.maximum(1, counts.sum(0))
    recall = right / np.maximum(1, counts.sum(1))
    f1 = 2 * precision * recall / np.where(precision + recall > 0, precision + recall, 1)
    return [
        {
            "class_name": name,
            "precision": float(precision[i]),
            "recall": float(recall[i]),
            "f1": float(f1[i]),
            "support": int(counts[i].sum()),
        }
        for i, name in enumerate(classes)
    ]


def calibration(labels: np.ndarray, probabilities: np.ndarray) -> list[dict[str, float]]:
    """Compute bounds, count, mean confidence and accuracy for each of 15 equal bins of the predicted probability."""
    confidence = probabilities.max(1).astype(np.float64)
    right = probabilities.argmax(1) == labels
    edges = np.linspace(0, 1, _CALIBRATION_BINS + 1)
    index = np.clip(np.searchsorted(edges, confidence, side="left") - 1, 0, _CALIBRATION_BINS - 1)
    return [
        {
            "lower": float(edges[i]),
            "upper": float(edges[i + 1]),
            "count": int(here.sum()),
            "confidence": float(confidence[here].mean()) if here.any() else 0.0,
            "accuracy": float(right[here].mean()) if here.any() else 0.0,
        }
        for i, here in enumerate(index == i for i in range(_CALIBRATION_BINS))
    ]


def worst(ids: np.ndarray, labels: np.ndarray, probabilities: np.ndarray, *, count: int) -> list[dict[str, Any]]:
    """Return up to `count` mistakes, those with the highest predicted probability first."""
    predictions, confidence = probabilities.argmax(1), probabilities.max(1)
    mistakes = np.flatnonzero(predictions != labels)
    order = mistakes[np.lexsort((ids[mistakes], -confidence[mistakes]))][:count]
    return [
        {
            "id": int(ids[i]),
            "label": int(labels[i]),
            "prediction": int(predictions[i]),
            "probability": float(confidence[i]),
        }
        for i in order
    ]
