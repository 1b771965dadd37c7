"""Test rows as a model predicted them, by the names of their classes and of the files that they came from."""

import difflib
from collections.abc import Iterator

import numpy as np
import pandas as pd
import pyarrow as pa

from storage import manifest, tables
from storage.manifest import Manifest
from storage.uri import PredictionsURI
from tasks.learning import images
from tasks.promotion.correct_rows import known_classes

_NULLABLE = {pa.int64(): pd.Int64Dtype()}
"""Type of a column with missing values, which would else become floating-point numbers."""


def read(uri: PredictionsURI, predicted: Manifest) -> Iterator[pd.DataFrame]:
    """Yield the rows of each part of `uri`: id, label, prediction and its probability; of own files also file and row.

    Labels and predictions are names of classes; `row` is the number of the row in a Parquet file, else missing.
    """
    labels, known = (np.array(names, object) for names in _classes(uri, predicted))
    columns = ["id", "label", "prediction", "probability"]
    columns += ["file", "row"] if "file" in predicted.columns["columns"] else []
    for part in predicted.split("test"):
        rows = tables.read_part(uri, part, columns=columns).to_pandas(types_mapper=_NULLABLE.get)
        rows = rows.dropna(subset=["label", "prediction"])
        rows["label"] = labels[rows["label"].to_numpy(int)]
        rows["prediction"] = known[rows["prediction"].to_numpy(int)]
        yield rows


def mistakes(
    uri: PredictionsURI, predicted: Manifest, *, label: str | None = None, prediction: str | None = None
) -> pd.DataFrame:
    """Return the rows of `read` with a wrong prediction, the most confident first; only some parts are in memory.

    Only those of class `label` and those predicted as `prediction`; raises `ValueError` for an unknown class.
    """
    names = sorted({name for some in _classes(uri, predicted) for name in some})
    chosen = {"label": label, "prediction": prediction}
    for option, name in (("--class", label), ("--as", prediction)):
        if name is not None and name not in names:
            known = difflib.get_close_matches(name, names, n=1, cutoff=0.5) or names[:10]
            raise ValueError(f"{option}: no class is called {name!r}; use one such as {', '.join(known)}")
    wrong = []
    for rows in read(uri, predicted):
        is_wrong = rows["label"] != rows["prediction"]
        for column, name in chosen.items():
            is_wrong &= (rows[column] == name) | (name is None)
        wrong.append(rows[is_wrong])
    return pd.concat(wrong).sort_values(["probability", "id"], ascending=[False, True], ignore_index=True)


def names(rows: pd.DataFrame) -> list[str]:
    """Return for each row of `read` its file, for Parquet also the row in it; for downloaded data its id."""
    if "file" not in rows:
        return [f"test row {id_}" for id_ in rows["id"]]
    return [file if row is pd.NA else f"{file} row {row}" for file, row in zip(rows["file"], rows["row"], strict=True)]


def _classes(uri: PredictionsURI, predicted: Manifest) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the classes of the dataset's labels, and those of the model."""
    if not predicted.split("test"):
        raise ValueError(f"{uri} has no predictions of test rows; name a result of a whole run")
    try:
        dataset = manifest.load(predicted.parent("dataset", of=uri))
    except FileNotFoundError as error:
        raise ValueError(f"{uri}: its test rows no longer exist: {error}; run its pipeline again") from None
    return images.classes_of(dataset.columns["metadata"]), known_classes(uri, predicted)
