"""Paired bootstrap: how far the difference of two models' metrics on the same rows may be due to chance."""

import numpy as np

from tasks.learning import metrics

_NUM_RESAMPLES = 10_000
_PIECE = 2**20
"""Counts held at a time, so that memory does not grow with the rows."""


def compare(rows: np.ndarray, *, name: str, num_classes: int) -> dict[str, float]:
    """Compare two models by the metric `name` of `metrics.scores` on rows drawn with replacement.

    The p-value is the share of resamples whose difference is at least as far from the difference on the given rows as
    that is from 0 (Berg-Kirkpatrick et al. 2012, two-sided); it is at least 1/10,001. The interval is the basic one
    (Davison and Hinkley 1997). The seed is fixed, so equal rows give equal results.

    `rows` are the label, and the prediction of either model, -1 for a class without rows; int64, (3, rows). Returns the
    fields `difference`, `lower`, `upper` and `p_value` of a `Difference`.
    """
    cells, counts = np.unique(rows, axis=1, return_counts=True)  # equal rows are drawn together: fast for many rows
    difference = float(_differences(counts[None], cells, name=name, num_classes=num_classes)[0])
    generator, step = np.random.default_rng(0), max(1, _PIECE // len(counts))
    resampled = np.concatenate(
        [
            _differences(
                generator.multinomial(len(rows[0]), counts / len(rows[0]), size=min(step, _NUM_RESAMPLES - start)),
                cells,
                name=name,
                num_classes=num_classes,
            )
            for start in range(0, _NUM_RESAMPLES, step)
        ]
    )
    num_as_far = int((np.abs(resampled - difference) >= abs(difference) - 1e-12).sum())
    low, high = np.quantile(resampled, (0.025, 0.975))
    return {
        "difference": difference,
        "lower": max(-1.0, float(2 * difference - high)),
        "upper": min(1.0, float(2 * difference - low)),
        "p_value": (1 + num_as_far) / (1 + _NUM_RESAMPLES),
    }


def _differences(drawn: np.ndarray, cells: np.ndarray, *, name: str, num_classes: int) -> np.ndarray:
    """Return the difference for each resample, from how often it has each cell: `drawn` (resamples, cells)."""
    labels, *predictions = cells
    scores = []
    for predicted in predictions:
        hits = np.where(predicted == labels, labels, -1)
        counts = [_sums(drawn, classes, num_classes) for classes in (hits, labels, predicted)]
        scores.append(metrics.scores_of_counts(*counts)[name])
    return np.asarray(scores[0] - scores[1])


def _sums(drawn: np.ndarray, classes: np.ndarray, num_classes: int) -> np.ndarray:
    """Sum `drawn` (resamples, cells) over the cells of each class, -1 of none: (resamples, classes)."""
    width = num_classes + 1
    places = np.arange(len(drawn))[:, None] * width + classes + 1
    sums = np.bincount(places.ravel(), weights=drawn.ravel(), minlength=len(drawn) * width)
    return sums.reshape(-1, width)[:, 1:]
