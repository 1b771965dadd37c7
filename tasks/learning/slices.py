"""Slices of the test rows, such as those of one camera: which are significantly worse than others of their classes."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from storage.manifest import JSON
from storage.statistics import Slice
from tasks.learning.metrics import wilson

if TYPE_CHECKING:
    import pandas as pd

_MIN_ROWS = 20
"""Fewest rows of a slice."""
_MOST = 20
"""Most slices of one fact, those with the most rows."""
_ALPHA = 0.05
"""Largest corrected p-value of a slice that is called worse."""
_NEGLIGIBLE = 1e-30


def find(facts: "pd.DataFrame", labels: np.ndarray, is_right: np.ndarray) -> list[Slice]:
    """Compare the rows of each value of each fact with the other rows, class by class.

    The p-value is that of Fisher's exact test, stratified by class, so that a slice of a hard class is not worse for
    that. It is corrected for the number of slices by Holm's method (1979): if none is worse, one is called worse in at
    most 5 % of evaluations.

    Args:
        facts: A column of text for each fact, with None where it is not known.
        labels: True class of each row.
        is_right: Whether the prediction of each row is correct.

    Returns:
        The slices of each fact, the largest first.
    """
    slices: list[JSON] = []
    for fact, values in facts.items():
        counts = values.value_counts().sort_index().sort_values(ascending=False, kind="stable")
        if len(counts) == 1 and counts.iloc[0] == len(values):
            continue
        for value in counts[counts >= _MIN_ROWS].head(_MOST).index:
            compared = compare((values == value).to_numpy(bool), labels, is_right)
            slices.append({"fact": fact, "value": value, **compared})
    tested = [entry for entry in slices if entry["p_value"] is not None]
    for entry, corrected in zip(tested, _holm(np.array([entry["p_value"] for entry in tested])), strict=True):
        entry |= {"p_corrected": corrected, "is_worse": corrected <= _ALPHA}
    return [Slice(**entry) for entry in slices]


def worse(slices: Iterable[Slice]) -> list[Slice]:
    """Return the slices that are significantly worse, the surest first."""
    return sorted((entry for entry in slices if entry.is_worse), key=lambda entry: entry.p_corrected or 0.0)


def describe(entry: Slice) -> str:
    """Say in words how much worse a slice is, which has others to compare it with."""
    assert entry.p_corrected is not None
    p = f"{entry.p_corrected:.4f}" if entry.p_corrected >= 0.0001 else "below 0.0001"
    return (
        f"{entry.fact} {entry.value}: accuracy {entry.accuracy:.4f} of {entry.rows:,} rows, others of the "
        f"same classes {entry.others:.4f} (corrected p {p})"
    )


def compare(is_in: np.ndarray, labels: np.ndarray, is_right: np.ndarray) -> JSON:
    """Compare the rows of one slice with the others of their classes; the p-value is not corrected yet."""
    num_classes = int(labels.max()) + 1
    rows, wrong, own, own_wrong = (
        np.bincount(labels[some], minlength=num_classes)
        for some in (np.ones_like(is_in), ~is_right, is_in, is_in & ~is_right)
    )
    both = (own > 0) & (own < rows)
    num_rows, right = int(own.sum()), int(own.sum() - own_wrong.sum())
    others, p_value = None, None
    if both.any():
        shares = (wrong - own_wrong)[both] / (rows - own)[both]
        others = float(1 - np.average(shares, weights=own[both]))
        p_value = _chance(rows[both], wrong[both], own[both], at_least=int(own_wrong[both].sum()))
    compared: JSON = {"rows": num_rows, "right": right, "accuracy": right / num_rows}
    compared |= {"interval": wilson(right / num_rows, num_rows), "others": others}
    return compared | {"p_value": p_value, "p_corrected": None, "is_worse": False}


def _chance(rows: np.ndarray, wrong: np.ndarray, own: np.ndarray, *, at_least: int) -> float:
    """Return the probability of this number of wrong rows among `own` of the `rows` of each class, drawn at random."""
    logs = np.concatenate([[0], np.cumsum(np.log(np.arange(1, rows.max() + 1)))])  # of factorials
    chances, first = np.ones(1), 0
    for number, bad, drawn in zip(rows.tolist(), wrong.tolist(), own.tolist(), strict=True):
        some = np.arange(max(0, drawn - (number - bad)), min(drawn, bad) + 1)
        log = sum(logs[n] - logs[k] - logs[n - k] for n, k in ((bad, some), (number - bad, drawn - some)))
        chances = np.convolve(chances, np.exp(log - (logs[number] - logs[drawn] - logs[number - drawn])))
        likely = np.flatnonzero(chances > _NEGLIGIBLE)
        first += int(some[0] + likely[0])
        chances = chances[likely[0] : likely[-1] + 1]
    return float(np.clip(chances[max(0, at_least - first) :].sum(), _NEGLIGIBLE, 1))


def _holm(p_values: np.ndarray) -> Iterator[float]:
    order = np.argsort(p_values, kind="stable")
    steps = np.maximum.accumulate(p_values[order] * np.arange(len(order), 0, -1))
    return (float(min(1, value)) for value in steps[np.argsort(order, kind="stable")])
