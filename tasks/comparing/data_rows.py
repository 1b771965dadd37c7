"""Rows of a run's data, so that two runs can be compared: the user's files by SHA-256, other rows by their pixels."""

import numpy as np
import pandas as pd

from storage import kinds, tables
from tasks.comparing.results import Results
from tasks.jobs import row_digests, row_origins
from tasks.learning import images

DataRows = tuple[str, pd.DataFrame, pd.DataFrame]
"""What `load` returns."""


def load(a: Results, b: Results) -> DataRows:
    """Return the unit (`file` or `row`), and of either a table: split, id, file, class and digest.

    Image files have their SHA-256, whatever the size to which they were scaled. Rows of Parquet and of downloaded data
    have digests of their pixels, from the prepared datasets. Raises `ValueError` with the next step if rows have no
    digests, or the size of the images differs.
    """
    sources = [_sources(side) for side in (a, b)]
    if all(table is not None and not _is_parquet(table).any() for table in sources):
        unit, read = "file", _image_files
    elif _shape(a) == _shape(b):
        unit, read = "row", _rows
    else:
        raise ValueError("rows are compared by their pixels, and the sizes of the images differ; prepare both alike")
    first, second = (read(side, table) for side, table in zip((a, b), sources, strict=True))
    return unit, first, second


def _image_files(side: Results, sources: pd.DataFrame | None) -> pd.DataFrame:
    assert sources is not None
    names = {"first_id": "id", "path": "file", "sha256": "digest"}
    return sources[["split", *names]].rename(columns=names).merge(_labels(side), how="left", on=["split", "id"])


def _rows(side: Results, sources: pd.DataFrame | None) -> pd.DataFrame:
    uri, _ = side.require(kinds.PREPARED)
    rows: pd.DataFrame = row_digests.read(uri).to_pandas()
    rows["split"] = rows["split"].replace("validation", "train")
    rows["file"] = rows["split"] + " row " + rows["id"].astype(str)
    if sources is None:
        return rows.merge(_labels(side), how="left", on=["split", "id"])
    for split, its in rows.groupby("split"):
        paths, numbers, _ = row_origins.files_of(sources, str(split), its["id"].tolist())
        names = [path if row is None else f"{path} row {row}" for path, row in zip(paths, numbers, strict=True)]
        rows.loc[its.index, "file"] = names
    return rows.merge(_labels(side), how="left", on=["split", "id"])


def _labels(side: Results) -> pd.DataFrame:
    """Read the class of each row of the raw dataset; empty for none and for a label out of range."""
    uri, raw = side.require(kinds.RAW)
    names = np.array([*images.classes_of(raw.columns["metadata"]), ""], object)
    rows = []
    for part in (part for part in raw.files if part.split):
        table = tables.read_columns(uri, part, ["id", "label"])
        labels = table["label"].fill_null(-1).to_numpy()
        labels = np.where((labels >= 0) & (labels < len(names)), labels, -1)
        rows.append(pd.DataFrame({"split": part.split, "id": table["id"].to_numpy(), "class": names[labels]}))
    return pd.concat(rows, ignore_index=True)


def _sources(side: Results) -> pd.DataFrame | None:
    return row_origins.table(*side.require(kinds.RAW)) if side.manifest(kinds.RAW) else None


def _is_parquet(sources: pd.DataFrame) -> "pd.Series[bool]":
    return sources["path"].str.lower().str.endswith(".parquet")


def _shape(side: Results) -> tuple[int, int, int] | None:
    raw = side.manifest(kinds.RAW)
    return images.shape_of(raw.columns["metadata"]) if raw else None
