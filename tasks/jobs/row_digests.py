"""Digests of a prepared dataset's images, by which later decisions find test rows that a model was trained on."""

import hashlib

import numpy as np
import pandas as pd
import pyarrow as pa

from storage import commits, manifest, tables
from storage.manifest import File
from storage.uri import DatasetURI

_NAME = "digests"
"""Start of the file name, before the digest of the file."""
_BYTES = 16
SCHEMA = pa.schema({"split": pa.string(), "id": pa.int64(), "digest": pa.binary(_BYTES)})


def digests_of(pixels_NHWC: np.ndarray) -> bytes:
    """Return the first 16 bytes of the SHA-256 of each image's pixels, one after the other.

    Pixels rather than files: an image keeps its digest in another folder, in Parquet and in another file format.
    """
    return b"".join(hashlib.sha256(image.tobytes()).digest()[:_BYTES] for image in pixels_NHWC)


def write(uri: DatasetURI, rows: pd.DataFrame, digests: bytes) -> File:
    """Write the digests of `rows`, which have a split and an id, in their order; return the file's manifest entry."""
    column = pa.FixedSizeBinaryArray.from_buffers(pa.binary(_BYTES), len(rows), [None, pa.py_buffer(digests)])
    table = pa.table([rows["split"].astype(str).tolist(), rows["id"].tolist(), column], schema=SCHEMA)
    return commits.write_file(uri, f"{_NAME}.parquet", tables.encode(table))


def read(uri: DatasetURI) -> pa.Table:
    """Read split, id and digest of every row; raise `FileNotFoundError` if the dataset or its digests do not exist."""
    parts = [file for file in manifest.load(uri).files if file.path.startswith(f"{_NAME}-")]
    if not parts:
        raise FileNotFoundError(f"{uri} has no digests of its images")
    return tables.read_part(uri, parts[0], schema=tables.describe(SCHEMA)["columns"])
