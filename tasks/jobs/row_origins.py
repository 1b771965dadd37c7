"""Source file of each row of a dataset that was made of the user's own files, from the raw dataset's source table."""

import contextlib
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from storage import manifest, tables
from storage.manifest import Damaged, Manifest
from storage.uri import DatasetURI

NAME = "sources"
"""Start of the file name, before the digest, of the table."""
SCHEMA = pa.schema(
    {
        "split": pa.string(),
        "first_id": pa.int64(),
        "rows": pa.int64(),
        "path": pa.string(),
        "size": pa.int64(),
        "sha256": pa.string(),
        "problem": pa.string(),
    }
)
"""Table of sources: row `id` of a split came from the split's last file whose first_id is not above `id`."""


def table(uri: DatasetURI, raw: Manifest) -> pd.DataFrame | None:
    """Load a raw dataset's table of source files; None for a downloaded dataset."""
    parts = [file for file in raw.files if file.path.startswith(f"{NAME}-")]
    columns = tables.describe(SCHEMA)["columns"]
    return tables.read_part(uri, parts[0], schema=columns).to_pandas() if parts else None


def find(sources: pd.DataFrame, split: str, rows: Sequence[int] | np.ndarray | pd.Series) -> pd.DataFrame:
    """Return the entry of `sources` for each row in `rows` of a raw dataset's `split`."""
    in_split = sources[sources["split"] == split]
    return pd.DataFrame(in_split.iloc[np.searchsorted(in_split["first_id"], rows, side="right") - 1])


def table_of(uri: DatasetURI) -> pd.DataFrame | None:
    """Load the table of source files for a dataset, raw or prepared, whose predictions name files.

    None if it was made of a download, or of a raw dataset that no longer exists; also for a fold of an audit.
    """
    raw = raw_of(uri)
    return table(*raw) if raw else None


def raw_of(uri: DatasetURI) -> tuple[DatasetURI, Manifest] | None:
    """Return URI and manifest of the raw dataset of `uri`, which may be raw itself; None where `table_of` has none."""
    dataset = manifest.load(uri)
    if "folds" in dataset.parameters:  # its test rows are of both splits, which an id alone does not tell
        return None
    if "raw" not in dataset.parents:
        return uri, dataset
    raw = DatasetURI(dataset.parent("raw", of=uri))
    with contextlib.suppress(FileNotFoundError, Damaged):
        return raw, manifest.load(raw)
    return None


def files_of(sources: pd.DataFrame, split: str, ids: Sequence[int]) -> tuple[list[str], list[int | None], list[str]]:
    """Return the path of each id's file, for Parquet also the row in that file, from 0, and the file's SHA-256.

    Train and validation both have ids of the raw dataset's train.
    """
    origins = find(sources, "train" if split == "validation" else split, ids)
    rows = (np.asarray(ids) - origins["first_id"].to_numpy()).tolist()
    paths = origins["path"].tolist()
    numbers = [row if path.lower().endswith(".parquet") else None for path, row in zip(paths, rows, strict=True)]
    return paths, numbers, origins["sha256"].tolist()
