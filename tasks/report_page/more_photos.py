"""Whether a probe needs more photos: its cross-validated accuracy by their number, and what its mistakes look like."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from threadpoolctl import threadpool_limits

from storage.uri import EmbeddingsURI
from tasks.images import embedding_rows, row_tables
from tasks.learning import metrics, probe
from tasks.learning.epoch_metrics import choose_class_weights
from tasks.resources import scaling

MOST_ROWS = 5000
"""Rows of the cross-validation; of more, these are drawn."""
_NEAREST = 9
_LITTLE = 0.02
"""Largest gain in accuracy by twice the photos that is called little."""
_AT_ONCE = 8192


@dataclasses.dataclass(frozen=True, kw_only=True)
class MorePhotos:
    """What the rows of all splits say, each judged by a probe that has seen neither it nor a copy."""

    rows: int
    """Rows that were judged."""
    total: int
    accuracy: float
    balanced_accuracy: float
    interval: tuple[float, float]
    """95 % interval of the accuracy (Wilson)."""
    quarter: float
    """Mean accuracy of probes that are fitted to a quarter of the rows, of the same folds."""
    half: float
    gain: tuple[float, float]
    """95 % interval of the difference of the accuracies with all and with half of the rows."""
    nearest: Mapping[int, Sequence[tuple[str, np.ndarray]]] = dataclasses.field(default_factory=dict)
    """Class and image of the training rows most like each mistake, by its id."""

    @property
    def verdict(self) -> str:
        """What the interval of the gain says; a gain in a sample says nothing about more than all photos."""
        low, high = self.gain
        if high < _LITTLE:
            return "more photos of the same kind help little"
        if self.rows < self.total:
            return "a sample does not tell whether more than all photos help"
        return "more photos help" if low > 0 else "these photos are too few to tell whether more help"


def of_probe(
    embeddings: EmbeddingsURI, *, class_weights: str, mistakes: Sequence[int], most_rows: int = MOST_ROWS
) -> MorePhotos:
    """Return what the rows of a probe's embeddings say; of very many, those that are drawn with a fixed seed.

    Args:
        embeddings: What the probe was fitted to.
        class_weights: `none` or `balanced`, as in its training.
        mistakes: Ids of test rows whose nearest training rows are shown.
        most_rows: Most rows of the cross-validation.
    """
    rows = embedding_rows.read(embeddings)
    total = len(rows.labels)
    if total > most_rows:
        rows = rows.take(np.sort(np.random.default_rng(0).permutation(total)[:most_rows]))
    measured = measure(rows.vectors, rows.labels, groups=rows.groups(), class_weights=class_weights)
    return dataclasses.replace(measured, total=total, nearest=nearest(embeddings, mistakes))


def measure(vectors: np.ndarray, labels: np.ndarray, *, groups: np.ndarray, class_weights: str = "none") -> MorePhotos:
    """Judge each row by probes that are fitted to all, to each half and to each quarter of the rows of other folds.

    Halves and quarters have their share of each class and fold; the penalty is the one chosen with all rows.
    Embeddings are float (N, dimensions), labels and groups int64 (N,): rows of one group are in one fold.
    """
    weights = choose_class_weights(class_weights, np.bincount(labels).tolist())
    fit = functools.partial(
        probe.fit, vectors, labels, groups=groups, class_weights=weights, threads=scaling.cores_here()
    )
    drawn = np.random.default_rng(0).permutation(len(labels))
    order = np.lexsort((drawn, probe.folds(labels, groups), labels))
    fitted = fit()
    predicted = fitted.out_of_fold.argmax(1)

    def judge(parts: int) -> np.ndarray:
        """Return for each row the share of the parts whose probes are right."""
        is_right = []
        for part in range(parts):
            is_used = np.full(len(labels), False)
            is_used[order[part::parts]] = True
            is_right.append(fit(is_used=is_used, penalties=[fitted.penalty]).out_of_fold.argmax(1) == labels)
        return np.asarray(np.mean(is_right, axis=0))

    quarter, half = judge(4), judge(2)
    scores = metrics.scores(labels, predicted, num_classes=int(labels.max()) + 1)
    return MorePhotos(
        rows=len(labels),
        total=len(labels),
        accuracy=scores["test_accuracy"],
        balanced_accuracy=scores["balanced_accuracy"],
        interval=metrics.wilson(scores["test_accuracy"], len(labels)),
        quarter=float(quarter.mean()),
        half=float(half.mean()),
        gain=_interval((predicted == labels) - half),
    )


def _interval(differences: np.ndarray) -> tuple[float, float]:
    """Return the interval of `significance.interval`, also for means of several draws."""
    num_rows = len(differences) + 2
    mean = float(differences.sum()) / num_rows
    half = 1.96 * math.sqrt((float((differences**2).sum() + 2) / num_rows - mean**2) / num_rows)
    return mean - half, mean + half


def nearest(embeddings: EmbeddingsURI, ids: Sequence[int]) -> dict[int, list[tuple[str, np.ndarray]]]:
    """Return class and image of the training rows whose embeddings are most like each test row of `ids` (cosine)."""
    train, test = (embedding_rows.read(embeddings, split) for split in ("train", "test"))
    place = dict(zip(test.ids.tolist(), range(len(test.ids)), strict=True))
    with threadpool_limits(1):  # the number of cores changes no bit
        wrong = _directions(test.vectors[[place[id_] for id_ in ids]])
        starts = range(0, len(train.labels), _AT_ONCE)
        cosines = np.concatenate([_directions(train.vectors[row : row + _AT_ONCE]) @ wrong.T for row in starts])
    most_alike = np.argsort(-cosines, axis=0, kind="stable")[:_NEAREST].T
    image_of = dict(row_tables.read_images(train.prepared, "train", train.ids[np.unique(most_alike)].tolist()))
    return {
        id_: [(train.classes[train.labels[row]], image_of[int(train.ids[row])]) for row in rows]
        for id_, rows in zip(ids, most_alike, strict=True)
    }


def _directions(vectors: np.ndarray) -> np.ndarray:
    wide = vectors.astype(np.float32)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=1, keepdims=True), np.finfo(np.float32).tiny))
