"""Reader of Parquet files from any source: finds the columns of images and labels, the classes, and the rows."""

import contextlib
import dataclasses
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.tables import open_parquet
from tasks.jobs.ingest import class_names, label_source, pieces
from tasks.jobs.ingest.label_source import LabelSource
from tasks.learning import decode
from tasks.learning.decode import Decoded

_IMAGE_NAMES = ("image", "img")
_LABEL = b"pipeline.label"
"""Metadata key, added here, for the name of the column of labels."""
_MOST_CLASSES = 10_000
_BATCH_ROWS = 256
_BUFFER_BYTES = 2**20
"""Rows to decode, and bytes to read, at a time, since images may be large."""


@dataclasses.dataclass(frozen=True)
class Opened:
    """A Parquet file of images of which only the footer has been read."""

    file: pq.ParquetFile
    image: str
    """Name of the column of images."""
    label: LabelSource
    """Where its labels are."""

    @property
    def metadata(self) -> dict[bytes, bytes]:
        """Metadata of the file, with the name of the column of labels."""
        return {**(self.file.schema_arrow.metadata or {}), _LABEL: (self.label.column or "").encode()}


def opened(source: Path | BinaryIO, *, path: str = "", must_be_labelled: bool = True) -> Opened:
    """Open a file and find its column of images and its labels; raise `ValueError` if it cannot.

    `path` is the file's path below the user's folder, whose folders may say its label (`label=cat`).
    """
    with _damage_as_value_error():
        file = open_parquet(source, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    label = label_source.find(file.schema_arrow, path, is_required=must_be_labelled)
    return Opened(file, _image_column(file.schema_arrow), label)


@contextlib.contextmanager
def _damage_as_value_error() -> Iterator[None]:
    """Raise `ValueError` for a damaged, encrypted or unsupported file; an error of the disk stays: it may pass."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"this Parquet file cannot be read: {reason}; write or copy it again") from None


def tables(source: Opened, bounds: Iterable[tuple[int, int]]) -> Iterator[pa.Table]:
    """Yield columns `image`, `label` and `path` of each range in `bounds`, which must be consecutive.

    Holds one range at a time.
    """
    columns = [name for name in (source.image, source.label.column) if name is not None]
    batches = source.file.iter_batches(_BATCH_ROWS, columns=columns, use_pandas_metadata=False)
    held: list[pa.RecordBatch] = []
    for start, stop in bounds:
        with _damage_as_value_error():
            while sum(len(batch) for batch in held) < stop - start:
                held.append(next(batches))
        table = pa.Table.from_batches(held)
        held = table.slice(stop - start).to_batches()
        yield _named(table.slice(0, stop - start), source)


def _named(table: pa.Table, source: Opened) -> pa.Table:
    stored = table[source.image]
    paths = pa.chunked_array([pa.nulls(len(table), pa.string())])
    found = _labels(table, source.label)
    if pa.types.is_struct(stored.type):
        if stored.type.get_field_index("path") >= 0:
            paths = _field(stored, "path")
        stored = _field(stored, "bytes")
    if pa.types.is_dictionary(found.type):
        found = found.cast(found.type.value_type)
    return pa.table({"image": stored, "label": found, "path": paths}).replace_schema_metadata(source.metadata)


def _field(structs: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    return pa.chunked_array([chunk.field(name) for chunk in structs.chunks], structs.type.field(name).type)


def _labels(table: pa.Table, source: LabelSource) -> pa.ChunkedArray:
    if source.column is not None:
        return table[source.column]
    return pa.chunked_array([pa.array([source.value] * len(table), pa.string())])


def _image_column(schema: pa.Schema) -> str:
    """Return the column with a usual name, or the only one that holds images unless another has such a name."""
    fitting: list[str] = [field.name for field in schema if _holds_images(field.type)]
    named = [name for name in _IMAGE_NAMES if name in fitting]
    if named or (len(fitting) == 1 and not set(_IMAGE_NAMES) & set(schema.names)):
        return (named or fitting)[0]
    raise ValueError(
        "there must be a column image (or img) of images: bytes, a struct with bytes, or fixed-size binary, not file "
        f"names; the columns are {label_source.describe(schema)}: convert one"
    )


def _holds_images(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _holds_images(kind.field("bytes").type)
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(is_one(kind) for is_one in kinds)


def _declared(metadata: Mapping[bytes, bytes]) -> list[str] | None:
    """Return the class names that the file's metadata declare, as Hugging Face's and this project's files do."""
    try:
        if b"classes" in metadata:
            names = json.loads(metadata[b"classes"])
        else:
            feature = json.loads(metadata[b"huggingface"])["info"]["features"][metadata[_LABEL].decode()]
            names = feature["names"] if feature.get("_type") == "ClassLabel" else []
        return [class_names.normal(str(name)) for name in names] or None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def survey(source: Opened) -> dict[str, Any]:
    """Count a file's rows and its rows without a label; list its labels and the class names that it declares."""
    assert source.label.is_known
    with _damage_as_value_error():
        columns = [source.label.column] if source.label.column else []
        found = _labels(source.file.read(columns=columns, use_pandas_metadata=False), source.label)
    if pa.types.is_dictionary(found.type):
        found = found.cast(found.type.value_type)
    counts = {row["values"]: row["counts"] for row in found.value_counts().to_pylist()}
    values = [value for value in counts if not class_names.is_missing(value)]
    if len(values) > _MOST_CLASSES:
        raise ValueError(f"the label column has {len(values):,} different values; use a column of classes")
    declared = _declared(source.metadata) if all(isinstance(value, int) for value in values) else None
    if declared and len(set(declared)) < len(declared):
        twice = next(name for name in declared if declared.count(name) > 1)
        raise ValueError(f"its metadata has two classes named {twice!r}; names must be unique")
    unlabelled = sum(count for value, count in counts.items() if class_names.is_missing(value))
    known = {class_names.name_of(value, declared): count for value, count in counts.items() if value in values}
    return {
        "rows": len(found),
        "unlabelled": unlabelled,
        "labels": sorted(values),
        "names": declared,
        "source": str(source.label),
        "counts": {name: count for name, count in known.items() if name is not None},
    }


def rows(
    table: pa.Table, *, size: int, channels: int, classes: Sequence[str]
) -> tuple[list[Decoded | None], list[int | None], list[str]]:
    """Return images of one size (None if missing or unreadable), labels (None if missing), and problems.

    Labels are numbers of `classes`, whatever numbers the file itself uses for them. The problem of a readable image is
    empty.
    """
    shape = _shape(table) if pa.types.is_fixed_size_binary(table["image"].type) else None
    decoded: list[Decoded | None] = []
    problems: list[str] = []
    for content, path in zip(table["image"].to_pylist(), table["path"].to_pylist(), strict=True):
        image, problem = None, ""
        try:
            if content is None:
                problem = f"the file name {path!r} instead of the image: store its bytes" if path else pieces.MISSING
            elif shape is not None:
                image = decode.scaled(np.frombuffer(content, np.uint8).reshape(shape), size, channels)
            else:
                image = decode.decoded(content, size, channels)
        except decode.Unreadable as error:
            problem = str(error)
        decoded.append(image)
        problems.append(problem)
    return decoded, class_names.numbers(table["label"].to_pylist(), _declared(table.schema.metadata), classes), problems


def _shape(table: pa.Table) -> tuple[int, int, int]:
    """Return the shape of raw images: as the file's metadata says, else square with one or three channels."""
    width = table["image"].type.byte_width
    try:
        height, across, channels = json.loads((table.schema.metadata or {})[b"shape"])
        if height * across * channels == width and 1 <= channels <= 4:
            return height, across, channels
    except (KeyError, ValueError, TypeError):
        pass
    for channels in (1, 3):
        side = math.isqrt(width // channels)
        if side * side * channels == width:
            return side, side, channels
    raise ValueError(f"raw images of {width} bytes are not square images of 1 or 3 channels; store them as PNG")
