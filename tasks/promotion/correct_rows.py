"""A model's correct and wrong predictions, test row by test row, for comparing two models."""

import dataclasses
import hashlib
import json
from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from storage import manifest, tables
from storage.decision import Difference
from storage.manifest import Damaged, Manifest
from storage.uri import DatasetURI, EvaluationURI, PredictionsURI
from tasks.learning import images

COLUMN = "probability_"
"""Prefix of the probability column of a class."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """A model's predictions on the test rows, in the order of their ids."""

    ids: np.ndarray
    """Row ids; int64, (rows,)."""
    labels: np.ndarray
    """True labels as indices into `classes`; int64, (rows,)."""
    is_right: np.ndarray
    """Whether the name of the predicted class is that of the row's class; bool, (rows,)."""
    classes: tuple[str, ...]
    """Names of the classes of the test rows."""
    dataset: DatasetURI
    """Dataset of the test rows."""

    @property
    def accuracy(self) -> float:
        """Share of correct predictions."""
        return float(self.is_right.mean())

    def without(self, ids: Sequence[int]) -> "Answers":
        """Return the predictions on all other rows than those with `ids`."""
        stays = ~np.isin(self.ids, ids)
        rows = {name: getattr(self, name)[stays] for name in ("ids", "labels", "is_right")}
        return dataclasses.replace(self, **rows)

    def largest_class(self) -> tuple[str, float]:
        """Return the name and share of the most frequent class: the accuracy of always predicting it."""
        counts = np.bincount(self.labels, minlength=len(self.classes))
        return self.classes[int(counts.argmax())], float(counts.max() / len(self.labels))

    def digest(self) -> str:
        """Return the SHA-256 of the test rows: their ids and classes."""
        names = json.dumps([self.classes[label] for label in self.labels])
        return hashlib.sha256(self.ids.astype("<i8").tobytes() + names.encode()).hexdigest()

    def beside(self, rival: "Answers") -> Difference:
        """Compare this model's accuracy with that of `rival`; raise `ValueError` if their rows differ."""
        if not np.array_equal(self.ids, rival.ids):
            raise ValueError("the predictions are for different test rows and cannot be compared")
        return Difference.of(
            only_challenger=int((self.is_right & ~rival.is_right).sum()),
            only_rival=int((rival.is_right & ~self.is_right).sum()),
            num_rows=len(self.ids),
        )


def read(evaluation: EvaluationURI) -> Answers | None:
    """Read the predictions behind `evaluation`; return None if they or their dataset no longer exist."""
    try:
        predictions = PredictionsURI(manifest.load(evaluation).parent("predictions", of=evaluation))
        made = manifest.load(predictions)
        place = DatasetURI(made.parent("dataset", of=predictions))
        dataset = manifest.load(place)
        rows = tables.read_split(predictions, "test", columns=["id", "label", "prediction"]).sort_by("id")
    except (KeyError, FileNotFoundError, Damaged):
        return None
    classes = images.classes_of(dataset.columns["metadata"])
    number = {name: label for label, name in enumerate(classes)}
    answered = np.array([number.get(name, -1) for name in known_classes(predictions, made)])
    labels = rows["label"].to_numpy()
    is_right = answered[rows["prediction"].to_numpy()] == labels
    return Answers(ids=rows["id"].to_numpy(), labels=labels, is_right=is_right, classes=classes, dataset=place)


def known_classes(predictions: PredictionsURI, made: Manifest) -> tuple[str, ...]:
    """Return the model's classes, in its order, from the columns of its predictions."""
    part = manifest.read_file(predictions, made.split("test")[0])
    names = tables.open_parquet(pa.BufferReader(part)).schema_arrow.names
    return tuple(name.removeprefix(COLUMN) for name in names if name.startswith(COLUMN))
