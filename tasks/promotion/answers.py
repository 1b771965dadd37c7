"""A model's predictions, test row by test row: read for the gate, for the comparison of two models, and for pages."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from storage import manifest, tables
from storage.decision import METRICS, Difference
from storage.kinds import PROBABILITY_PREFIX, DatasetURI, EvaluationURI, PredictionsURI
from storage.manifest import Manifest
from tasks.learning import images, metrics
from tasks.promotion import significance


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Answers:
    """A model's predictions on the test rows, in the order of their ids."""

    ids: np.ndarray
    """Row ids; int64, (rows,)."""
    labels: np.ndarray
    """True labels as indices into `classes`; int64, (rows,)."""
    predictions: np.ndarray
    """Predicted classes as indices into `classes`, -1 for a class that only the model knows; int64, (rows,)."""
    classes: tuple[str, ...]
    """Names of the classes of the test rows."""
    dataset: DatasetURI
    """Dataset of the test rows."""

    @classmethod
    def of(cls, rows: pd.DataFrame, dataset: DatasetURI, classes: Sequence[str]) -> "Answers":
        """Return `rows` of `read_rows`, all or some; `classes` has every label among them."""
        numbers = pd.Index(classes)
        labels, predictions = (numbers.get_indexer(pd.Index(rows[name])) for name in ("label", "prediction"))
        ids = rows["id"].to_numpy(int)
        return cls(ids=ids, labels=labels, predictions=predictions, classes=tuple(classes), dataset=dataset)

    @property
    def scores(self) -> dict[str, float]:
        """The metrics that a gate may use."""
        return metrics.scores(self.labels, self.predictions, num_classes=len(self.classes))

    def without(self, ids: Sequence[int]) -> "Answers":
        stays = ~np.isin(self.ids, ids)
        rows = {name: getattr(self, name)[stays] for name in ("ids", "labels", "predictions")}
        return dataclasses.replace(self, **rows)

    def largest_class(self) -> tuple[str, dict[str, float]]:
        """Return the name of the most frequent class, and the scores of always predicting it."""
        largest = int(np.bincount(self.labels).argmax())
        always = dataclasses.replace(self, predictions=np.full_like(self.labels, largest))
        return self.classes[largest], always.scores

    def chance(self, metric: str) -> float:
        """Return how likely these predictions, dealt to the rows at random, reach the score by one of `METRICS`.

        It is the share of 999 permutations with a fixed seed, and of the given order.
        """
        generator, score = np.random.default_rng(0), self.scores[METRICS[metric]] - 1e-12
        dealt = (dataclasses.replace(self, predictions=generator.permutation(self.predictions)) for _ in range(999))
        return (1 + sum(each.scores[METRICS[metric]] >= score for each in dealt)) / 1000

    def compare_with(self, rival: "Answers", *, metric: str) -> Difference:
        """Compare this model with `rival` by one of `METRICS`; raise `ValueError` if their rows differ."""
        if not np.array_equal(self.ids, rival.ids):
            raise ValueError("the predictions are for different test rows and cannot be compared")
        is_right, is_rival_right = self.predictions == self.labels, rival.predictions == self.labels
        better, worse = int((is_right & ~is_rival_right).sum()), int((is_rival_right & ~is_right).sum())
        lower, upper = None, None
        if metric == "accuracy":
            difference = (better - worse) / len(self.ids)
            lower, upper = significance.interval(better, worse, num_rows=len(self.ids))
            p_value = significance.mcnemar_test(better, worse)
        else:
            name, rows = METRICS[metric], np.stack([self.labels, self.predictions, rival.predictions])
            difference = self.scores[name] - rival.scores[name]
            p_value = significance.swap_test(rows, name=name, num_classes=len(self.classes))
        return Difference(
            metric=metric,
            num_rows=len(self.ids),
            only_challenger=better,
            only_rival=worse,
            difference=difference,
            lower=lower,
            upper=upper,
            p_value=p_value,
        )


def read(evaluation: EvaluationURI) -> Answers:
    """Read the predictions behind `evaluation`; raise `FileNotFoundError` if they or their dataset no longer exist."""
    predictions = PredictionsURI(manifest.load(evaluation).parent("predictions", of=evaluation))
    recorded = manifest.load(predictions)
    dataset = DatasetURI(recorded.parent("dataset", of=predictions))
    return Answers.of(read_rows(predictions, recorded), dataset, label_names(dataset))


def read_rows(predictions: PredictionsURI, recorded: Manifest) -> pd.DataFrame:
    """Read the test rows by their ids: id, label, prediction and its probability; of own images also file and row.

    Labels and predictions are names of classes; `row` is the number of the row in a Parquet file, else missing. Raises
    `FileNotFoundError` if the dataset no longer exists, and `ValueError` if there are no predictions of test rows.
    """
    if not recorded.split("test"):
        raise ValueError(f"{predictions} has no predictions of test rows; name a result of a whole run")
    labels = label_names(DatasetURI(recorded.parent("dataset", of=predictions)))
    columns = ["id", "label", "prediction", "probability"]
    columns += ["file", "row"] if "file" in recorded.columns["columns"] else []
    table = tables.read_split(predictions, "test", columns=columns).sort_by("id")
    nullable = {pa.int64(): pd.Int64Dtype()}  # else missing values make floating-point numbers of a column
    rows: pd.DataFrame = table.to_pandas(types_mapper=nullable.get).dropna(subset=["label", "prediction"])
    for name, classes in (("label", labels), ("prediction", known_classes(predictions, recorded))):
        rows[name] = np.array(classes, object)[rows[name].to_numpy(int)]
    return rows


def label_names(dataset: DatasetURI) -> tuple[str, ...]:
    return images.classes_of(manifest.load(dataset).columns["metadata"])


def names_of(rows: pd.DataFrame) -> list[str]:
    """Return for each row its file, for Parquet also the row in it; for downloaded data its id."""
    if "file" not in rows:
        return [f"test row {id_}" for id_ in rows["id"]]
    return [file if row is pd.NA else f"{file} row {row}" for file, row in zip(rows["file"], rows["row"], strict=True)]


def known_classes(predictions: PredictionsURI, recorded: Manifest) -> tuple[str, ...]:
    part = manifest.read_file(predictions, recorded.split("test")[0])
    return classes_of(tables.open_parquet(pa.BufferReader(part)).schema_arrow.names)


def classes_of(columns: Iterable[str]) -> tuple[str, ...]:
    """Return the model's classes, in its order, from the names of the columns of its predictions."""
    return tuple(name.removeprefix(PROBABILITY_PREFIX) for name in columns if name.startswith(PROBABILITY_PREFIX))
