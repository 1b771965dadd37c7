"""Rows of an audit: suspects among the predictions of its trainings, by file, their images, and the page of them."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa

from storage import manifest, tables
from storage.kinds import PREPARED, PROBABILITY_PREFIX
from storage.manifest import JSON
from storage.uri import AuditURI, DatasetURI, PredictionsURI
from tasks import report_page
from tasks.auditing import confident_learning
from tasks.auditing.confident_learning import LabelNoise
from tasks.images import row_tables
from tasks.learning import images
from tasks.report_page import pictures

SCHEMA = pa.schema(
    {
        "split": pa.string(),
        "id": pa.int64(),
        "file": pa.string(),
        "row": pa.int64(),
        "given": pa.string(),
        "likely": pa.string(),
        "sure": pa.bool_(),
        "probability": pa.float32(),
        "probability_given": pa.float32(),
        "probability_wrong": pa.float32(),
    }
)
"""Suspects, worst first: `split` and `id` are those of the raw dataset, `row` is that in a Parquet file; of
these, as many are `sure` as there are wrong labels."""
LEAST = 0.02
"""Share of all rows that are shown at least."""
MOST_SHOWN = 200
"""Most suspects on the page; the table has all."""
_FITTED = 2**21
"""Most probabilities that the label noise is fitted to."""
Batch = tuple[np.ndarray, np.ndarray]
"""Labels, int64 (N,), and the probabilities of all classes, (N, classes)."""


class Fold:
    """Predictions of one training of an audit, on rows that it was not trained on, and the dataset with these rows."""

    def __init__(self, predictions: PredictionsURI) -> None:
        recorded = manifest.load(predictions)
        self.uri, self.split = predictions, str(recorded.parameters["split"])
        self.parts = recorded.split(self.split)
        self.dataset = DatasetURI(recorded.parent("dataset", of=predictions))
        self.prepared = manifest.load(self.dataset)
        self.num_rows = recorded.rows
        # A fold has rows of both splits, those of train first; validation rows are all of train.
        self.statistics = self.prepared.statistics_of(PREPARED)
        of_train = self.statistics.fold_rows_of_train
        self._num_train = recorded.rows if of_train is None else of_train
        self.raw = DatasetURI(self.prepared.parent("raw", of=self.dataset))
        self.classes = images.classes_of(self.prepared.columns["metadata"])
        self._columns = ["label", *(f"{PROBABILITY_PREFIX}{name}" for name in self.classes)]

    def batches(self) -> Iterator[Batch]:
        """Yield labels and probabilities, part by part."""
        for part in self.parts:
            table = tables.read_part(self.uri, part, columns=self._columns)
            yield table["label"].to_numpy(), np.stack([table[name].to_numpy() for name in self._columns[1:]], axis=1)

    def places(self, positions: pd.Series) -> pd.DataFrame:
        """Return `split` and `id` in the raw dataset, and `file` and `row`, at `positions`, with their index."""
        ids = tables.read_split(self.uri, self.split, columns=["id"])["id"].to_numpy()[positions]
        splits = np.where(positions < self._num_train, "train", "test")
        places = pd.DataFrame({"split": splits, "id": ids}, index=positions.index)
        places["file"], places["row"] = places["split"] + "/" + places["id"].astype(str), None
        if (sources := row_tables.table(self.raw, manifest.load(self.raw))) is not None:
            for split, rows in places.groupby("split"):
                files, numbers, _ = row_tables.files_of(sources, str(split), rows["id"].tolist())
                places.loc[rows.index, "file"], places.loc[rows.index, "row"] = files, numbers
        return places


def find_suspects(folds: Sequence[Fold]) -> pa.Table:
    """Return the rows with the least probable labels, worst first; reads the predictions part by part, twice.

    They are as many as there are wrong labels, if these are `LEAST` of all or more, else `LEAST` of all.
    """
    num_rows, classes = sum(fold.num_rows for fold in folds), np.array(folds[0].classes, dtype=object)
    noise = _fit(folds, step=math.ceil(num_rows * len(classes) / _FITTED))
    num_wrong = round(noise.rate * num_rows)
    num_listed = max(num_wrong, math.ceil(LEAST * num_rows))
    rows = pd.concat([_worst(fold, number, noise, count=num_listed) for number, fold in enumerate(folds)])
    suspects = rows.sort_values(["probability_given", "fold", "position"], ignore_index=True).head(num_listed)
    is_sure = (suspects.index < num_wrong) & (suspects["probability"] > suspects["probability_given"])
    of_fold = [suspects.loc[suspects["fold"] == number, "position"] for number in range(len(folds))]
    places = [fold.places(positions) for fold, positions in zip(folds, of_fold, strict=True)]
    suspects = suspects.join(pd.concat(places)).assign(
        sure=is_sure, given=classes[suspects["given"]], likely=classes[suspects["likely"]]
    )
    return pa.Table.from_pandas(suspects, schema=SCHEMA, preserve_index=False).replace_schema_metadata(None)


def _fit(folds: Sequence[Fold], *, step: int) -> LabelNoise:
    """Fit the label noise to every `step`-th row."""
    some = [(labels[::step], probabilities[::step]) for fold in folds for labels, probabilities in fold.batches()]
    labels, probabilities = map(np.concatenate, zip(*some, strict=True))
    return confident_learning.fit(labels, probabilities)


def _worst(fold: Fold, number: int, noise: LabelNoise, *, count: int) -> pd.DataFrame:
    """Return the `count` rows with the least probable labels."""
    frames, first = [], 0
    for labels, predicted in fold.batches():
        probabilities, everyone = noise.tempered(predicted), np.arange(len(labels))
        of_label = probabilities[everyone, labels]
        probabilities[everyone, labels] = -1
        likely, wrong = probabilities.argmax(1), noise.wrong(of_label, num_classes=len(fold.classes))
        some = np.argsort(of_label, kind="stable")[:count]
        values: dict[str, object] = {"fold": number, "position": first + some, "given": labels[some]}
        values |= {"likely": likely[some], "probability": probabilities[some, likely[some]]}
        frames.append(pd.DataFrame(values | {"probability_given": of_label[some], "probability_wrong": wrong[some]}))
        first += len(labels)
    return pd.concat(frames).nsmallest(count, "probability_given")


def render(suspects: pa.Table, folds: Sequence[Fold]) -> str:
    """Render the page; the same suspects give the same bytes."""
    shown = suspects.slice(0, MOST_SHOWN)
    rows = list(zip(shown["split"].to_pylist(), shown["id"].to_pylist(), strict=True))  # an id is the number of the row
    image_of = pictures.of_raw_rows(folds[0].raw, rows)
    template = report_page.environment(Path(__file__).parent).get_template("audit.html.j2")
    return template.render(
        suspects=[row | {"image": image_of[key]} for key, row in zip(rows, shown.to_pylist(), strict=True)],
        total=len(suspects),
        sure=sum(suspects["sure"].to_pylist()),
        rows=sum(fold.num_rows for fold in folds),
        trainings=len(folds),
    )


def read(audit: AuditURI) -> list[JSON]:
    """Read the suspects of a committed audit, worst first, as plain values."""
    suspects: list[JSON] = tables.read_split(audit, "suspects").to_pylist()
    return suspects
