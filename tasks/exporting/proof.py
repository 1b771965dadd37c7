"""Proof of an export: it runs over every test row and gives what the model gives in fp32."""

import dataclasses
from collections.abc import Callable

import numpy as np

from storage import manifest, tables
from storage.error_policy import Permanent
from storage.uri import DatasetURI
from tasks.learning import images, metrics

TOLERANCE = 1e-5
"""Largest difference of a probability."""
_BATCH = 64
"""Images at a time, so that memory does not depend on the size of a part."""
Run = Callable[[np.ndarray], np.ndarray]
"""From images (uint8, (N, H, W, C)) to probabilities (float32, (N, classes))."""


class NotEqual(Permanent, RuntimeError):
    """The exported file does not give what the model gives."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proof:
    """Result of the comparison over all test rows."""

    rows: int
    largest_difference: float
    """Over all probabilities of all rows."""
    confusion: np.ndarray
    """Rows by true class and class that the exported file predicts."""


def prove(exported: Run, model: Run, dataset: DatasetURI, *, classes: tuple[str, ...]) -> Proof:
    """Compare `exported` with `model` on all test rows of `dataset`; raise `NotEqual` naming the worst row if it fails.

    It fails if a row gets another class, or a probability that differs by more than `TOLERANCE`.
    """
    recorded = manifest.load(dataset)
    shape, parts = images.shape_of(recorded.columns["metadata"]), recorded.split("test")
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    worst = (False, 0.0, "")
    for part in parts:
        table = tables.read_part(dataset, part)
        pixels, labels = images.to_arrays(table, shape)
        assert labels is not None, "a prepared dataset has labels"
        ids = table["id"].to_numpy()
        for start in (0, *range(1, len(pixels), _BATCH)):  # also one image alone
            rows = slice(start, start + _BATCH if start else 1)
            actual, expected = exported(pixels[rows]), model(pixels[rows])
            worst = max(worst, _worst(actual, expected, ids[rows], classes))
            confusion += metrics.confusion(labels[rows], actual.argmax(1), num_classes=len(classes))
    has_other_class, difference, row = worst
    if has_other_class or difference > TOLERANCE:
        raise NotEqual(
            f"not exported: the file does not give what the model gives: {row}, a difference of {difference:.1e} (at "
            f"most {TOLERANCE:g}); use another --format or architecture"
        )
    return Proof(rows=int(confusion.sum()), largest_difference=difference, confusion=confusion)


def _worst(
    actual: np.ndarray, expected: np.ndarray, ids: np.ndarray, classes: tuple[str, ...]
) -> tuple[bool, float, str]:
    """Return of the worst row whether its class differs, the largest difference of its probabilities, and its words."""
    differences = np.nan_to_num(np.abs(actual - expected).max(1), nan=np.inf)
    (answers, expected_answers) = actual.argmax(1), expected.argmax(1)
    row = np.lexsort((differences, answers != expected_answers))[-1]
    predictions = " instead of ".join(
        f"{classes[answer]!r} ({probabilities[row, answer]:.6f})"
        for answer, probabilities in ((answers[row], actual), (expected_answers[row], expected))
    )
    return bool(answers[row] != expected_answers[row]), float(differences[row]), f"test row {ids[row]} is {predictions}"
