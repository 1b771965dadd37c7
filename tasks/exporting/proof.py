"""Proof of an export: it runs over every test row and gives what the model gives in fp32."""

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from storage import manifest, tables
from storage.error_policy import Permanent
from storage.kinds import DatasetURI
from tasks.images.embedding_rows import directions
from tasks.learning import images, metrics

ABSOLUTE, RELATIVE = 1e-5, 1e-3
"""Largest difference of a logit, as torch tests its exporter: the first, plus the second times the largest logit.

Of all rows, not of each: all logits of a doubtful row are near 0.
"""
_LEAST_COSINE = 1 - 1e-5
"""Of the angle between an embedding of the file and of the model."""
_BATCH = 64
"""Images at a time, so that memory does not depend on the size of a part."""
Run = Callable[[np.ndarray], Sequence[np.ndarray]]
"""From images (uint8, (N, H, W, C)) to probabilities (float32, (N, classes)) and perhaps embeddings."""


class NotEqual(Permanent, RuntimeError):
    """The exported file does not give what the model gives."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Proof:
    """Result of the comparison over all test rows."""

    rows: int
    largest_difference: float
    """Over all probabilities of all rows."""
    num_others: int
    """Rows of another class than the model gives: its two best are closer than the differences allowed."""
    confusion: np.ndarray
    """Rows by true class and class that the exported file predicts."""

    @property
    def scores(self) -> dict[str, float]:
        hits, rows, predicted = np.diag(self.confusion), self.confusion.sum(1), self.confusion.sum(0)
        return {name: float(value) for name, value in metrics.scores_of_counts(hits, rows, predicted).items()}


def prove(exported: Run, model: Run, dataset: DatasetURI, *, classes: tuple[str, ...]) -> Proof:
    """Compare `exported` with `model` on all test rows of `dataset`; raise `NotEqual` naming the worst row if it fails.

    It fails if a logit differs by more than `ABSOLUTE` and `RELATIVE` allow. So a row gets another class only if its
    two best are that close. The order of the rows does not matter. It also fails if an embedding has another direction.
    """
    recorded = manifest.load(dataset)
    shape, parts = images.shape_of(recorded.columns["metadata"]), recorded.split("test")
    confusion = np.zeros((len(classes), len(classes)), np.int64)
    largest, num_others, scale, distance, worst, cosine = 0.0, 0, 0.0, 0.0, "", 1.0
    for part in parts:
        table = tables.read_part(dataset, part)
        pixels, labels = images.to_arrays(table, shape)
        assert labels is not None, "a prepared dataset has labels"
        for start in (*range(1, len(pixels), _BATCH), 0):  # also one image alone
            rows = slice(start, start + _BATCH if start else 1)
            (actual, *embeddings), (expected, *others) = exported(pixels[rows]), model(pixels[rows])
            for one, other in zip(embeddings, others, strict=True):
                cosine = min(cosine, *np.nan_to_num((directions(one) * directions(other)).sum(1), nan=-1).tolist())
            logits = _logits(expected)
            scale = max(scale, float(np.abs(logits).max()))
            distances = np.nan_to_num(np.abs(_logits(actual) - logits).max(1), nan=np.inf)
            if distances.max() > distance:
                row, distance = int(distances.argmax()), float(distances.max())
                shown = f"{actual[row].round(6)} instead of {expected[row].round(6)}"
                worst = f"probabilities of test row {table['id'][start + row]} are {shown}"
            largest = max(largest, float(np.abs(actual - expected).max()))
            num_others += int((actual.argmax(1) != expected.argmax(1)).sum())
            confusion += metrics.confusion(labels[rows], actual.argmax(1), num_classes=len(classes))
    if (share := distance / (ABSOLUTE + RELATIVE * scale)) > 1:
        raise NotEqual(
            f"not exported: the file does not give what the model gives: {worst} "
            f"(logits {share:.1f} times as far apart as allowed); use another architecture"
        )
    if not cosine > _LEAST_COSINE:
        raise NotEqual("not exported: the file gives other embeddings than the model; use another architecture")
    return Proof(rows=int(confusion.sum()), largest_difference=largest, num_others=num_others, confusion=confusion)


def _logits(probabilities: np.ndarray) -> np.ndarray:
    """Return the logits of `probabilities`, of which only differences matter, with mean 0 in each row."""
    logarithms = np.log(np.maximum(probabilities, np.finfo(np.float32).tiny))
    return np.asarray(logarithms - logarithms.mean(1, keepdims=True))
