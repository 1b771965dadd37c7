"""Rows of a dataset: the user's file that each came from, and a digest of each image, in tables; their images."""

import contextlib
import hashlib
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from storage import commits, manifest, tables
from storage.kinds import RAW, DatasetURI
from storage.manifest import Damaged, File, Manifest
from tasks.learning import images

SOURCES, _DIGESTS = "sources", "digests"
"""Starts of the tables' file names, before the digest of the file."""
_BYTES = 16
DIGEST_SCHEMA = pa.schema({"split": pa.string(), "id": pa.int64(), "digest": pa.binary(_BYTES)})
"""Table of digests, by which later decisions find test rows that a model was trained on."""
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
    read = _read(uri, raw, SOURCES, SCHEMA)
    return None if read is None else read.to_pandas()


def _read(uri: DatasetURI, dataset: Manifest, name: str, schema: pa.Schema) -> pa.Table | None:
    file = dataset.file(name)
    return tables.read_part(uri, file, schema=tables.describe(schema)["columns"]) if file else None


def find(sources: pd.DataFrame, split: str, rows: Sequence[int] | np.ndarray | pd.Series) -> pd.DataFrame:
    """Return the entry of `sources` for each row in `rows` of a raw dataset's `split`."""
    in_split = sources[sources["split"] == split]
    return pd.DataFrame(in_split.iloc[np.searchsorted(in_split["first_id"], rows, side="right") - 1])


def table_of(uri: DatasetURI) -> pd.DataFrame | None:
    """Load the table of source files for a dataset, raw or prepared, whose predictions name files.

    None if it was made of a download, or of a raw dataset that no longer exists.
    """
    raw = raw_of(uri)
    return table(*raw) if raw else None


def raw_of(uri: DatasetURI) -> tuple[DatasetURI, Manifest] | None:
    """Return URI and manifest of the raw dataset of `uri`, which may be raw itself; None where `table_of` has none."""
    dataset = manifest.load(uri)
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


def with_files(rows: pd.DataFrame, dataset: DatasetURI) -> pd.DataFrame:
    """Return `rows`, which have a split and an id, with file and row (of Parquet); for downloads both are the file."""
    named = rows.assign(file=rows["split"] + "/" + rows["id"].astype(str), row=None)
    if (sources := table_of(dataset)) is not None:
        for split, of_split in rows.groupby("split"):
            files, numbers, _ = files_of(sources, str(split), of_split["id"].tolist())
            named.loc[of_split.index, "file"], named.loc[of_split.index, "row"] = files, numbers
    return named


def digests_of(pixels_NHWC: np.ndarray) -> bytes:
    """Return the first 16 bytes of the SHA-256 of each image's pixels, one after the other.

    Pixels rather than files: an image keeps its digest in another folder, in Parquet and in another file format.
    """
    return b"".join(hashlib.sha256(image.tobytes()).digest()[:_BYTES] for image in pixels_NHWC)


def write_digests(uri: DatasetURI, rows: pd.DataFrame, digests: bytes) -> File:
    """Write the digests of `rows`, which have a split and an id, in their order; return the file's manifest entry."""
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_BYTES), len(rows), [None, pa.py_buffer(digests)])
    table = pa.table([rows["split"].astype(str).tolist(), rows["id"].tolist(), column], schema=DIGEST_SCHEMA)
    return commits.write_file(uri, f"{_DIGESTS}.parquet", tables.encode(table))


def read_digests(uri: DatasetURI) -> pa.Table:
    """Read split, id and digest of every row; raise `FileNotFoundError` if the dataset or its digests do not exist."""
    if (read := _read(uri, manifest.load(uri), _DIGESTS, DIGEST_SCHEMA)) is None:
        raise FileNotFoundError(f"{uri} has no digests of its images")
    return read


def read_images(uri: DatasetURI, split: str, ids: Collection[int]) -> Iterator[tuple[int, np.ndarray]]:
    """Yield id and image (uint8, HWC) of each row that has one; one part is in memory at a time."""
    dataset, left, first = manifest.load(uri), set(ids), 0
    shape = images.shape_of(dataset.columns["metadata"])
    for part in dataset.split(split):
        wanted = left
        if dataset.kind == RAW.name:  # an id is the number of the row
            wanted = left & set(range(first, first + (part.rows or 0)))
            first += part.rows or 0
        if wanted:
            table = tables.read_part(uri, part, columns=["id", "image"])
            is_wanted = pc.is_in(table["id"], value_set=pa.array(wanted, pa.int64()))
            table = table.filter(pc.and_(is_wanted, table["image"].is_valid()))
            numbers = table["id"].to_pylist()
            left = left.difference(numbers)
            yield from zip(numbers, images.to_arrays(table, shape)[0], strict=True)
