"""Whether a probe needs more photos: its cross-validated accuracy by their number, and what its mistakes look like."""

import dataclasses
import functools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from threadpoolctl import threadpool_limits

from storage import manifest
from storage.kinds import CHECKPOINT, CheckpointURI, EmbeddingsURI, PredictionsURI
from tasks.images import embedding_rows, row_tables
from tasks.learning import metrics
from tasks.learning.epoch_metrics import choose_class_weights
from tasks.resources import scaling

MOST_ROWS = 5000
"""Rows of the cross-validation; of more, these are drawn."""
_NEAREST = 9
_LITTLE = 0.02
"""Largest gain in accuracy by twice the photos that is called little."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class MorePhotos:
    """What the rows of all splits say, each judged by a probe that has seen neither it nor a copy."""

    rows: int
    """Rows that were judged, of `total`."""
    total: int
    balanced_accuracy: float
    curve: tuple[float, float, float]
    """Accuracy by probes that are fitted to a quarter, a half and all of the rows of other folds."""
    gain: tuple[float, float]
    """95% interval of the difference of the accuracies with all and with half of the rows."""
    nearest: Mapping[int, Sequence[tuple[str, np.ndarray]]] = dataclasses.field(default_factory=dict)
    """Class and image of the training rows most like each mistake, by its id."""

    @property
    def help(self) -> bool:
        """Whether more photos help, which a sample cannot say: it has no gain from more than all photos."""
        return self.rows == self.total and self.gain[0] > 0 and self.gain[1] >= _LITTLE

    @property
    def verdict(self) -> str:
        """What the interval of the gain says."""
        if self.gain[1] < _LITTLE:
            return "more photos of the same kind help little"
        if self.rows < self.total:
            return "a sample does not tell whether more than all photos help"
        return "more photos help" if self.help else "these photos are too few to tell whether more help"


def of_probe(
    checkpoint: CheckpointURI, predictions: PredictionsURI, *, mistakes: Sequence[int], most_rows: int = MOST_ROWS
) -> MorePhotos | None:
    """Return what the images of a probe say; None of another model, or for predictions of other data.

    `mistakes` are ids of test rows. Of more than `most_rows`, those that are drawn with a fixed seed are judged.
    """
    trained, predicted = manifest.load(checkpoint), manifest.load(predictions)
    is_own = trained.parents["prepared"].content == predicted.parents["dataset"].content
    if "embeddings" not in trained.parents or not is_own:
        return None
    embeddings = EmbeddingsURI(trained.parent("embeddings", of=checkpoint))
    rows, class_weights = embedding_rows.read(embeddings), trained.statistics_of(CHECKPOINT).resolved.class_weights
    total = len(rows.labels)
    drawn = np.sort(np.random.default_rng(0).permutation(total)[:most_rows])
    groups = rows.groups()[drawn]
    measured = measure(rows.vectors[drawn], rows.labels[drawn], groups=groups, class_weights=class_weights)
    return dataclasses.replace(measured, total=total, nearest=_nearest(embeddings, mistakes))


def measure(vectors: np.ndarray, labels: np.ndarray, *, groups: np.ndarray, class_weights: str = "none") -> MorePhotos:
    """Judge each row by probes that are fitted to all, to each half and to each quarter of the rows of other folds.

    Halves and quarters have their share of each class and fold; the penalty is the one chosen with all rows. Embeddings
    are float (N, dimensions), labels and groups int64 (N,): rows of one group are in one fold.
    """
    from tasks.learning import probe  # imports scikit-learn

    weights = choose_class_weights(class_weights, np.bincount(labels).tolist())
    threads = scaling.cores_here()
    fit = functools.partial(probe.fit, vectors, labels, groups=groups, class_weights=weights, threads=threads)
    order = np.lexsort((np.random.default_rng(0).permutation(len(labels)), probe.folds(labels, groups), labels))
    fitted = fit()

    def is_right(parts: int) -> np.ndarray:
        used = [np.isin(np.arange(len(labels)), order[part::parts]) for part in range(parts)]
        logits = [fit(is_used=each, penalties=[fitted.penalty]).out_of_fold for each in used]
        return np.asarray((np.argmax(logits, axis=2) == labels).mean(0))

    predicted, half = fitted.out_of_fold.argmax(1), is_right(2)
    # Bonett and Price's interval, as `significance.interval`, also for means of two draws
    differences, num_rows = (predicted == labels) - half, len(labels) + 2
    gain = float(differences.sum()) / num_rows
    reach = 1.96 * math.sqrt((float((differences**2).sum() + 2) / num_rows - gain**2) / num_rows)
    scores = metrics.scores(labels, predicted, num_classes=int(labels.max()) + 1)
    return MorePhotos(
        rows=len(labels),
        total=len(labels),
        balanced_accuracy=scores["balanced_accuracy"],
        curve=(float(is_right(4).mean()), float(half.mean()), scores["test_accuracy"]),
        gain=(gain - reach, gain + reach),
    )


def _nearest(embeddings: EmbeddingsURI, ids: Sequence[int]) -> dict[int, list[tuple[str, np.ndarray]]]:
    train, test = (embedding_rows.read(embeddings, split) for split in ("train", "test"))
    row_of = dict(zip(test.ids.tolist(), range(len(test.ids)), strict=True))
    mistakes = test.vectors[[row_of[id_] for id_ in ids]]
    with threadpool_limits(1):  # the number of cores changes no bit
        cosines = embedding_rows.directions(train.vectors) @ embedding_rows.directions(mistakes).T
    most_alike = np.argsort(-cosines, axis=0, kind="stable")[:_NEAREST].T
    image_of = dict(row_tables.read_images(train.dataset, "train", train.ids[np.unique(most_alike)].tolist()))
    return {
        id_: [(train.classes[train.labels[row]], image_of[int(train.ids[row])]) for row in rows]
        for id_, rows in zip(ids, most_alike, strict=True)
    }
