"""Rows of an audit: suspects among the predictions of its trainings, by file, and their images."""

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from storage import manifest, tables
from storage.uri import AuditURI, DatasetURI, PredictionsURI
from tasks.auditing import confident_learning
from tasks.auditing.confident_learning import Batch
from tasks.jobs import row_origins
from tasks.learning import images

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
        "why": pa.string(),
    }
)
"""Suspects, worst first: `split` and `id` are those of the raw dataset, `row` is that in a Parquet file."""
LEAST = 0.02
"""Share of all rows that are shown at least."""
_PREFIX = "probability_"


class Fold:
    """Predictions of one training of an audit, on rows that it was not trained on, and the dataset with these rows."""

    def __init__(self, predictions: PredictionsURI) -> None:
        recorded = manifest.load(predictions)
        self.uri, self.split = predictions, str(recorded.parameters["split"])
        self.parts = recorded.split(self.split)
        self.dataset = DatasetURI(recorded.parent("dataset", of=predictions))
        self.prepared = manifest.load(self.dataset)
        self.raw = DatasetURI(self.prepared.parent("raw", of=self.dataset))
        self.classes = images.classes_of(self.prepared.columns["metadata"])
        columns = recorded.columns["columns"]
        self._columns = ["label", *(name for name in columns if name.startswith(_PREFIX))]
        assert self._columns[1:] == [f"{_PREFIX}{name}" for name in self.classes]

    def batches(self) -> Iterator[Batch]:
        """Yield labels and probabilities, part by part."""
        for part in self.parts:
            table = tables.read_part(self.uri, part, columns=self._columns)
            yield table["label"].to_numpy(), np.stack([table[name].to_numpy() for name in self._columns[1:]], axis=1)

    def places(self, positions: pd.Series) -> pd.DataFrame:
        """Return `split` and `id` in the raw dataset, and `file` and `row`, at `positions`, with their index."""
        ids = tables.read_split(self.uri, self.split, columns=["id"])["id"].to_numpy()[positions]
        # A fold has rows of both splits, those of train first; validation rows are all of train.
        num_train = self.prepared.statistics.get("fold_rows", {}).get("train", np.inf)
        splits = np.where(positions < num_train, "train", "test")
        places = pd.DataFrame({"split": splits, "id": ids}, index=positions.index)
        places["file"], places["row"] = places["split"] + "/" + places["id"].astype(str), None
        if (sources := row_origins.table(self.raw, manifest.load(self.raw))) is not None:
            for split, rows in places.groupby("split"):
                files, numbers = row_origins.files_of(sources, str(split), rows["id"].tolist())
                places.loc[rows.index, "file"], places.loc[rows.index, "row"] = files, numbers
        return places


def find_suspects(folds: Sequence[Fold]) -> pa.Table:
    """Return the rows whose label is probably wrong, the worst first; reads the predictions part by part, twice.

    Those are the rows of which that is sure. If they are fewer than `LEAST` of all, the worst others come on top, up to
    that share: the cleaner the labels, the more certain must the model be. The worst have the least probable labels.
    """
    classes = np.array(folds[0].classes, dtype=object)
    all_batches = itertools.chain.from_iterable(fold.batches() for fold in folds)
    usual = confident_learning.thresholds(all_batches, num_classes=len(classes))
    least = math.ceil(LEAST * sum(part.rows or 0 for fold in folds for part in fold.parts))
    rows = pd.concat([_judged(fold, number, usual, least=least) for number, fold in enumerate(folds)])
    rows = rows.sort_values(["probability_given", "fold", "position"], ignore_index=True)
    is_added = (~rows["sure"]).cumsum() <= least - rows["sure"].sum()
    suspects = rows[rows["sure"] | is_added].reset_index(drop=True)
    of_fold = [suspects.loc[suspects["fold"] == number, "position"] for number in range(len(folds))]
    places = [fold.places(positions) for fold, positions in zip(folds, of_fold, strict=True)]
    suspects = suspects.join(pd.concat(places))
    values = [suspects[name].tolist() for name in ("likely", "probability", "given", "probability_given")]
    suspects["why"] = [
        f"{classes[likely]} {probability:.3f} (usually {usual[likely]:.3f} where that is the label), "
        f"{classes[given]} {own:.3f}"
        for likely, probability, given, own in zip(*values, strict=True)
    ]
    suspects = suspects.assign(given=classes[suspects["given"]], likely=classes[suspects["likely"]])
    return pa.Table.from_pandas(suspects, schema=SCHEMA, preserve_index=False).replace_schema_metadata(None)


def _judged(fold: Fold, number: int, usual: np.ndarray, *, least: int) -> pd.DataFrame:
    """Return the rows that are surely wrong, and of each part the `least` with the least probable labels."""
    frames, first = [], 0
    for labels, probabilities in fold.batches():
        likely, is_sure = confident_learning.judge(labels, probabilities, usual)
        given = probabilities[np.arange(len(labels)), labels]
        rows = np.union1d(np.flatnonzero(is_sure), np.argsort(given, kind="stable")[:least])
        values: dict[str, Any] = {"fold": number, "position": first + rows, "given": labels[rows]}
        values |= {"likely": likely[rows], "sure": is_sure[rows], "probability": probabilities[rows, likely[rows]]}
        frames.append(pd.DataFrame(values | {"probability_given": given[rows]}))
        first += len(labels)
    return pd.concat(frames)


def images_of(raw: DatasetURI, suspects: pa.Table) -> dict[int, np.ndarray]:
    """Read the images of `suspects`, uint8 (H, W, C), by their rank from 0; a raw dataset is read part by part."""
    recorded = manifest.load(raw)
    shape, pictures = images.shape_of(recorded.columns["metadata"]), dict[int, np.ndarray]()
    for split, rows in suspects.select(["split", "id"]).to_pandas().groupby("split"):
        ranks = dict(zip(rows["id"].tolist(), rows.index.tolist(), strict=True))
        for part in recorded.split(str(split)):
            table = tables.read_part(raw, part)
            chosen = np.flatnonzero(np.isin(table["id"].to_numpy(), rows["id"]))
            ids, pixels = table["id"].to_numpy()[chosen].tolist(), images.to_arrays(table.take(chosen), shape)[0]
            pictures |= {ranks[id_]: image for id_, image in zip(ids, pixels, strict=True)}
    return pictures


def read(audit: AuditURI) -> list[dict[str, Any]]:
    """Read the suspects of a committed audit, worst first, as plain values."""
    suspects: list[dict[str, Any]] = tables.read_split(audit, "suspects").to_pylist()
    return suspects
