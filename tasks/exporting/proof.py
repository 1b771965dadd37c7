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
    """Compare `exported` with `model` on all test rows of `dataset`; raise `NotEqual` naming a row if it fails.

    It fails if a row gets another class, or a probability that differs by more than `TOLERANCE`.
    """
    recorded = manifest.load(dataset)
    shape, parts = images.shape_of(recorded.columns["metadata"]), recorded.split("test")
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    largest = 0.0
    for part in parts:
        table = tables.read_part(dataset, part)
        pixels, labels = images.to_arrays(table, shape)
        assert labels is not None, "a prepared dataset has labels"
        for start in (0, *range(1, len(pixels), _BATCH)):  # also one image alone
            rows = slice(start, start + _BATCH if start else 1)
            actual, expected = exported(pixels[rows]), model(pixels[rows])
            differences = np.nan_to_num(np.abs(actual - expected).max(1), nan=np.inf)
            differences[actual.argmax(1) != expected.argmax(1)] = np.inf
            if differences.max() > TOLERANCE:
                worst = int(differences.argmax())
                raise NotEqual(
                    "not exported: the file does not give what the model gives: probabilities of test row "
                    f"{table['id'][start + worst]} are {actual[worst].round(6)} instead of {expected[worst].round(6)} "
                    f"(at most {TOLERANCE:g} apart are allowed); use another architecture"
                )
            largest = max(largest, float(differences.max()))
            confusion += metrics.confusion(labels[rows], actual.argmax(1), num_classes=len(classes))
    return Proof(rows=int(confusion.sum()), largest_difference=largest, confusion=confusion)
