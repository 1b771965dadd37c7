"""Statistics of the difference of two models on the same rows: exact tests, and an interval."""

import math
from collections.abc import Iterator

import numpy as np
from scipy import stats

from tasks.learning import metrics

_NUM_OUTCOMES = 2**15
"""Outcomes that are enumerated at most; of more, as many are drawn."""
_PIECE = 2**20
"""Counts held at a time, so that memory does not grow with the rows."""
_Z = 1.959963984540054
"""Two-sided 95 % of the normal distribution."""


def mcnemar_test(better: int, worse: int) -> float:
    """Compute the two-sided p-value of the exact McNemar test for `better` and `worse` discordant rows (McNemar 1947).

    It is a sign test: if the models are equally good, a discordant row is of either kind with probability 1/2.
    """
    return float(stats.binomtest(better, better + worse).pvalue) if better + worse else 1.0


def interval(better: int, worse: int, *, num_rows: int) -> tuple[float, float]:
    """Compute the 95% interval of the difference of two paired proportions (Bonett and Price 2012, adjusted Wald).

    Its width is positive even if no row is discordant, and its coverage holds for as few as some dozen rows.
    """
    shares = ((better + 1) / (num_rows + 2), (worse + 1) / (num_rows + 2))
    middle = shares[0] - shares[1]
    half = _Z * math.sqrt((sum(shares) - middle**2) / (num_rows + 2))
    return max(-1.0, middle - half), min(1.0, middle + half)


def swap_test(rows: np.ndarray, *, name: str, num_classes: int) -> float:
    """Compute the two-sided p-value of a difference by the metric `name` of `metrics.scores`; for accuracy, McNemar's.

    If models are equally good, their predictions for a row could as well be swapped. The p-value is the share of all
    possible swaps with at least the observed difference in either direction. Of too many, it is the share of those
    drawn with a fixed seed, and the observed one (Phipson and Smyth 2010): at least 1/32,769.

    `rows` are the label, and the prediction of either model, -1 for a class without rows; int64, (3, rows).
    """
    labels, ours, theirs = rows
    if name != "macro_f1":  # whatever is wrong counts alike
        ours, theirs = (np.where(predicted == labels, labels, -1) for predicted in (ours, theirs))
    differ = ours != theirs
    if not differ.any():
        return 1.0
    pairs = np.stack([labels, np.maximum(ours, theirs), np.minimum(ours, theirs)])[:, differ]
    groups, group, counts = np.unique(pairs, axis=1, return_inverse=True, return_counts=True)
    observed = np.bincount(group.ravel(), weights=(ours > theirs)[differ]).astype(int)[None]
    truth, answers = np.tile(groups[0], 2), groups[1:].ravel()
    agreed = ours[~differ]
    same = [agreed[agreed == labels[~differ]], labels, agreed[agreed >= 0]]
    hits, sizes, known = (np.bincount(classes, minlength=num_classes) for classes in same)

    def score(num_first: np.ndarray) -> np.ndarray:
        """Score a model that predicts the first class of each pair in so many of the pair's rows."""
        drawn = np.hstack([num_first, counts - num_first])
        right = hits + _sums(drawn, np.where(answers == truth, truth, -1), num_classes)
        return metrics.scores_of_counts(right, sizes, known + _sums(drawn, answers, num_classes))[name]

    least, share = abs(score(observed) - score(counts - observed)) - 1e-12, 0.0
    for num_first, probability in _outcomes(counts, observed):
        share += float(probability[abs(score(num_first) - score(counts - num_first)) >= least].sum())
    return min(1.0, share)


def _outcomes(counts: np.ndarray, observed: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield numbers of rows of each pair (outcomes, pairs), and the probability of each outcome (outcomes,)."""
    if math.prod((counts + 1).tolist()) <= _NUM_OUTCOMES:
        outcomes = np.indices(tuple(counts + 1)).reshape(len(counts), -1)
        shares = [[math.comb(count, first) / 2**count for first in range(count + 1)] for count in counts.tolist()]
        yield outcomes.T, np.prod([np.array(share)[of] for share, of in zip(shares, outcomes, strict=True)], axis=0)
        return
    generator, step, weight = np.random.default_rng(0), max(1, _PIECE // len(counts)), 1 / (1 + _NUM_OUTCOMES)
    yield observed, np.array([weight])
    for start in range(0, _NUM_OUTCOMES, step):
        drawn = generator.binomial(counts, 0.5, size=(min(step, _NUM_OUTCOMES - start), len(counts)))
        yield drawn, np.full(len(drawn), weight)


def _sums(drawn: np.ndarray, classes: np.ndarray, num_classes: int) -> np.ndarray:
    """Sum `drawn` (outcomes, cells) over the cells of each class, -1 of none: (outcomes, classes)."""
    width = num_classes + 1
    places = np.arange(len(drawn))[:, None] * width + classes + 1
    sums = np.bincount(places.ravel(), weights=drawn.ravel(), minlength=len(drawn) * width)
    return sums.reshape(-1, width)[:, 1:]
