"""Pictures of a dataset for the report: some training images of each class, and some of the rows left out."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from storage import commits, tables
from storage.manifest import File, Manifest
from storage.uri import DatasetURI
from tasks.jobs import row_origins
from tasks.jobs.preprocess import checks
from tasks.jobs.preprocess.near_duplicates import picture
from tasks.learning import images

OF_CLASS = "class"
"""Kind of a training image; any other row was left out."""
_NAME = "samples"
_PICTURES = 96
"""Most training images; of more classes, some spread evenly have one each."""
_MOST_OF_A_CLASS = 6
_LEFT_OUT = 24
"""Most rows left out, as evenly by reason as there are."""
_TEXTS = ("kind", "class", "place", "reason")
_SCHEMA = pa.schema([*((name, pa.string()) for name in _TEXTS), ("image", pa.binary())])


def of_classes(placed: pd.DataFrame, num_classes: int) -> pd.DataFrame:
    """Choose some training rows of each class, the first in the shuffled order: source, row, and label."""
    labels = np.linspace(0, num_classes - 1, min(num_classes, _PICTURES)).round()
    train = placed[(placed["split"] == "train") & placed["label"].isin(labels.astype(int).tolist())]
    of_each = min(_MOST_OF_A_CLASS, max(1, _PICTURES // num_classes))
    return train.groupby("label").head(of_each)[["source", "row", "label"]].sort_values("label", kind="stable")


def write(
    target: DatasetURI,
    chosen: pd.DataFrame,
    pictures: Mapping[tuple[str, int], bytes],
    quarantined: pd.DataFrame,
    *,
    uri: DatasetURI,
    raw: Manifest,
) -> File:
    """Write the `chosen` rows with their pictures and some of the `quarantined` rows of the raw dataset `uri`."""
    classes = images.classes_of(raw.columns["metadata"])
    rows: list[dict[str, Any]] = [
        {"kind": OF_CLASS, "class": classes[label], "image": pictures[source, row]}
        for source, row, label in zip(chosen["source"], chosen["row"], chosen["label"], strict=True)
    ]
    rank = quarantined.groupby("reason").cumcount()
    some = quarantined.assign(rank=rank).sort_values(["rank", "reason"], kind="stable").head(_LEFT_OUT)
    some = some.sort_values(["reason", "source", "row"]).reset_index(drop=True)
    opened = _open(some, uri, raw)
    for number, place in enumerate(checks.places(some, row_origins.table(uri, raw) if len(some) else None)):
        row = some.iloc[number]
        name = classes[row["label"]] if 0 <= row["label"] < len(classes) else None
        reason = row.get("problem") or row["reason"]
        rows.append({"kind": "", "class": name, "place": place, "reason": reason, "image": opened.get(number)})
    return commits.write_file(target, f"{_NAME}.parquet", tables.encode(pa.Table.from_pylist(rows, schema=_SCHEMA)))


def _open(rows: pd.DataFrame, uri: DatasetURI, raw: Manifest) -> dict[int, bytes]:
    """Return pictures of those of `rows` that have an image, by their number; one part is in memory at a time."""
    pictures: dict[int, bytes] = {}
    for split in checks.SPLITS:
        first = 0
        for part in raw.split(split):
            is_in = (rows["source"] == split) & rows["row"].between(first, first + (part.rows or 0) - 1)
            its = rows[is_in & (rows["reason"] != checks.UNREADABLE)]
            if len(its):
                table = tables.read_part(uri, part).select(["image"]).take(its["row"].to_numpy() - first)
                is_valid = table["image"].is_valid().to_numpy()
                pixels, _ = images.to_arrays(table.filter(pa.array(is_valid)), images.shape_of(raw.columns["metadata"]))
                pictures |= dict(zip(its.index[is_valid].tolist(), map(picture, pixels), strict=True))
            first += part.rows or 0
    return pictures


def read(uri: DatasetURI, prepared: Manifest) -> list[dict[str, Any]]:
    """Read the rows of training images and then those left out; empty if the dataset records none."""
    entries = [file for file in prepared.files if file.path.startswith(f"{_NAME}-")]
    return tables.read_part(uri, entries[0], schema=tables.describe(_SCHEMA)["columns"]).to_pylist() if entries else []
