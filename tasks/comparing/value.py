"""What training images cost a probe: it is fitted again without them, as by a run without them, and judged again."""

import contextlib
import functools
import itertools
from typing import Literal, NamedTuple

import numpy as np
import pandas as pd
from rich.console import Console
from rich.progress import track
from scipy.sparse.linalg import LinearOperator, cg
from scipy.special import softmax
from threadpoolctl import threadpool_limits

from storage import files, manifest, process, tables
from storage.decision import METRICS
from storage.kinds import CHECKPOINT, PREPARED, RAW, CheckpointURI, DatasetURI, EmbeddingsURI
from storage.uri import URI
from tasks.images import embedding_rows, image_facts, row_tables
from tasks.images.embedding_rows import EmbeddedRows
from tasks.jobs.train import probe_job
from tasks.learning import decode, images, metrics, probe
from tasks.learning.epoch_metrics import choose_class_weights
from tasks.learning.inference import Heads, Inference
from tasks.learning.probe import Probe
from tasks.learning.recipes import Gate, flat
from tasks.promotion import gate
from tasks.resources import devices, scaling

By = Literal["image", "folder", "camera", "day"]
_NOT_RECORDED = "not recorded"
_FIT_AT_ONCE = 2**28
"""Most numbers of the embeddings that are fitted at once; a fit takes 20 bytes for each."""
_TOLERANCE = 1e-4
"""Relative residual of a step that only ranks."""


class Scores(NamedTuple):
    """How good a probe is."""

    metric: float
    """The gate's metric on the test rows."""
    loss: float
    """Cross-entropy on the test rows."""
    validation: float
    """The gate's metric on the validation rows."""


class Retraining:
    """The rows of a probe, to fit it again to some of them."""

    def __init__(self, checkpoint: CheckpointURI) -> None:
        """Read the rows; raise `ValueError` for a model that cannot be fitted again so."""
        trained = manifest.load(checkpoint)
        recorded = trained.statistics_of(CHECKPOINT)
        if flat(recorded.recipe).get("training") != "probe":
            advice = "train one with --set training.kind=probe, and name it"
            raise ValueError(f"--model must be a probe, got {checkpoint}, whose backbone was trained, too; {advice}")
        embeddings = EmbeddingsURI(trained.parent("embeddings", of=checkpoint))
        self._checkpoint, self._prepared = checkpoint, DatasetURI(trained.parent("prepared", of=checkpoint))
        if not all(map(manifest.is_committed, (embeddings, self._prepared))):
            raise ValueError(
                f"--model: the images of {checkpoint}, or their embeddings, were deleted; run its pipeline"
            )
        measured = manifest.load(self._prepared).statistics_of(PREPARED).mean
        if "initial" not in trained.parents and recorded.model.mean == measured:
            advice = "which changes without one of them; use a probe with start=pretrained"
            raise ValueError(f"--model: {checkpoint} normalizes images by their own mean, {advice}")
        self._class_weights: str = flat(recorded.recipe)["class_weights"]
        self.metric = METRICS[gate.resolved(Gate(metric=flat(recorded.recipe)["metric"]), checkpoint).metric]
        self.train, self.validation, self.test = (
            embedding_rows.read(embeddings, split) for split in ("train", "validation", "test")
        )

    def fit(self, is_kept: np.ndarray, *, threads: int = 1) -> Probe:
        """Fit the probe to the training rows `is_kept`, bool (N,)."""
        return probe_job.fit(self.train.where(is_kept), self._class_weights, threads=threads)[0]

    def scores(self, fitted: Probe, is_kept: np.ndarray) -> Scores:
        """Score a probe of the rows `is_kept`, on test rows by what prediction and evaluation compute."""
        temperature = probe_job.temperature_of(fitted, self.train.labels[is_kept])
        probabilities = self._heads.probabilities(fitted.weights, fitted.bias, temperature=temperature)
        summary = metrics.summary(self.test.labels, probabilities.argmax(1), probabilities)
        labels, predicted = self.validation.labels, fitted.logits(self.validation.vectors).argmax(1)
        validation = metrics.scores(labels, predicted, num_classes=len(fitted.bias))
        return Scores(getattr(summary, self.metric), summary.test_loss, validation[self.metric])

    @functools.cached_property
    def _heads(self) -> Heads:
        recorded, device = manifest.load(self._prepared), devices.choose("auto", where=scaling.node_name())
        inference = Inference(self._checkpoint, threads=scaling.cores_here(), device=device, is_padded=False)
        shape = images.shape_of(recorded.columns["metadata"])
        parts = (tables.read_part(self._prepared, part) for part in recorded.split("test"))
        return Heads(inference, (images.to_arrays(part, shape)[0] for part in parts))

    def is_complete(self, is_kept: np.ndarray) -> bool:
        """Return whether each class has a row among those `is_kept`: a run demands it."""
        return bool(np.bincount(self.train.labels[is_kept], minlength=len(self.train.classes)).all())

    def influence(self, fitted: Probe) -> np.ndarray:
        """Estimate by one Newton step how the test loss changes without each training row, float64 (N,).

        `fitted` is the probe of all rows (Koh and Liang, Understanding black-box predictions, 2017).
        """
        rows, ones = (self.train, self.test), np.eye(len(fitted.bias))
        mean, scale = probe.mean_and_scale(self.train.vectors.astype(np.float64))
        features, of_test = (np.insert((each.vectors - mean) / scale, 0, 1, axis=1) for each in rows)
        shares, of_classes = (softmax(fitted.logits(each.vectors), axis=1) for each in rows)
        counts = np.bincount(self.train.labels).tolist()
        weights = np.array(choose_class_weights(self._class_weights, counts) or ones[0] ** 0)[self.train.labels, None]
        penalty = np.insert(np.full(len(mean), fitted.penalty), 0, 0)  # none of the bias

        def curvature(direction: np.ndarray) -> np.ndarray:
            slopes = direction.reshape(len(ones), -1)
            changes = shares * (features @ slopes.T)
            changes = weights * (changes - shares * changes.sum(1, keepdims=True))
            return np.asarray((changes.T @ features + penalty * slopes).ravel())

        slope = ((of_classes - ones[self.test.labels]).T @ of_test / len(of_test)).ravel()
        step, _ = cg(LinearOperator((slope.size, slope.size), curvature, dtype=float), slope, rtol=_TOLERANCE)
        errors = weights * (shares - ones[self.train.labels])
        return np.asarray((errors * (features @ step.reshape(len(ones), -1).T)).sum(1))


def measure(
    retraining: Retraining, group_of_row: np.ndarray, groups: pd.DataFrame, *, count: int
) -> tuple[Scores, pd.DataFrame, int, Scores]:
    """Retrain without each of the `count` groups of training rows that seem to cost most, and without these together.

    A group without which a class has no row is left out.

    Returns:
        Scores now; the groups, those that cost most first, with the changes `points` of the metric and `loss`; how many
        of them, the first ones, are harmful: the test loss is lower without; and the scores without these together.
    """
    everyone, threads = np.full(len(group_of_row), True), scaling.cores_here()
    fitted = retraining.fit(everyone, threads=threads)
    order = np.argsort(np.bincount(group_of_row, weights=retraining.influence(fitted)), kind="stable")
    chosen = itertools.islice((each for each in order if retraining.is_complete(group_of_row != each)), count)
    groups = groups.dropna(axis="columns", how="all").iloc[list(chosen)]
    kept = [group_of_row != group for group in groups.index]
    with threadpool_limits(1):  # else a fit that is done gives its threads to the others
        at_once = max(1, min(threads, _FIT_AT_ONCE // retraining.train.vectors.size))
        fits = process.in_threads(retraining.fit, kept, threads=at_once)
        console = Console(stderr=True)
        done = list(track(fits, "retraining", total=len(kept), console=console, transient=True))
    before, *after = map(retraining.scores, [fitted, *done], [everyone, *kept])
    points = [100 * (scores.metric - before.metric) for scores in after]
    ranked = groups.assign(points=points, loss=[scores.loss - before.loss for scores in after])
    ranked = ranked.sort_values("loss", kind="stable")
    num_harmful, rest = 0, everyone
    for group in ranked.index[ranked["loss"] < 0]:
        if not retraining.is_complete(less := rest & (group_of_row != group)):
            break
        num_harmful, rest = num_harmful + 1, less
    return before, ranked, num_harmful, retraining.scores(retraining.fit(rest, threads=threads), rest)


def groups_of(train: EmbeddedRows, by: By) -> tuple[np.ndarray, pd.DataFrame]:
    """Return the number of each training row's group, int64 (N,), and the groups by number.

    Images have file, row (of Parquet) and class; copies are one image. Other groups have what their images have in
    common, and the number of `images`. Raises `ValueError` if that is not known.
    """
    classes = np.array(train.classes, object)[train.labels]
    if by == "image":
        rows = pd.DataFrame({"id": train.ids, "split": train.splits, "class": classes})
        first = np.unique(train.copies(), return_index=True)[1]
        named = row_tables.with_files(rows, train.dataset)[["file", "row", "class"]]
        return train.copies(), named.iloc[first].reset_index(drop=True)
    known = image_facts.describe_rows(train.dataset, train.ids, classes.tolist(), split="train")
    facts = _days(train) if by == "day" else known[by].tolist() if by in known else []
    if len({*facts}) < 2:
        raise ValueError(f"--by {by}: no two images are known to differ in it; use --by image")
    numbers, names = pd.factorize(np.array(facts, object))
    return numbers, pd.DataFrame({by: names, "images": np.bincount(numbers)})


def _days(train: EmbeddedRows) -> list[str]:
    """Return the day of each image, by the user's own file as it is now."""
    if not (raw := row_tables.raw_of(train.dataset)) or (sources := row_tables.table(*raw)) is None:
        return []
    place = URI(raw[1].statistics_of(RAW).sources[0].url)

    def day(path: str) -> str:
        with contextlib.suppress(OSError):
            return decode.day_of(next(files.pieces(place.child(path)), b"")) or _NOT_RECORDED
        return _NOT_RECORDED

    paths, *_ = row_tables.files_of(sources, "train", train.ids.tolist())
    day_of_path = dict(zip(once := [*dict.fromkeys(paths)], process.in_threads(day, once, threads=8), strict=True))
    return [day_of_path[path] for path in paths]
