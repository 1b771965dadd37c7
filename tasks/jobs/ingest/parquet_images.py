"""Parquet that somebody else wrote: which columns are images and labels, which classes there are, and the rows."""

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.learning import decode
from tasks.learning.decode import Decoded

_IMAGE_NAMES = ("image", "img")
_LABEL_NAMES = ("label", "labels", "class", "target", "fine_label")
_LABEL = b"pipeline.label"
"""Key of the metadata that says what the column of labels was called."""
_MOST_CLASSES = 10_000
_BATCH_ROWS = 256
_BUFFER_BYTES = 2**20
"""Rows that are decoded, and bytes that are read, at a time: images may be large."""


@dataclasses.dataclass(frozen=True)
class Opened:
    """A Parquet file of images, of which nothing is read yet but its footer."""

    file: pq.ParquetFile
    image: str
    """Name of the column of images."""
    label: str
    """Name of the column of labels."""

    @property
    def metadata(self) -> dict[bytes, bytes]:
        """What the file says of itself, and which column has the labels."""
        return {**(self.file.schema_arrow.metadata or {}), _LABEL: self.label.encode()}


def opened(source: Path | BinaryIO) -> Opened:
    """Find the columns of images and labels, whatever they are called; raises `ValueError`."""
    try:
        file = pq.ParquetFile(source, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    except pa.ArrowInvalid as error:
        raise ValueError(f"this is no Parquet: {error}") from None
    schema = file.schema_arrow
    image = _column(schema, _IMAGE_NAMES, _holds_images, "of images: bytes, a struct with bytes, or fixed-size binary")
    label = _column(schema, _LABEL_NAMES, _is_label, "of labels: whole numbers or text")
    return Opened(file, image, label)


def tables(source: Opened, bounds: Iterable[tuple[int, int]]) -> Iterator[pa.Table]:
    """Yield the columns `image` and `label` of each range of rows, which follow one another; a range is in memory.

    Raises `ValueError` for what is damaged.
    """
    batches = source.file.iter_batches(_BATCH_ROWS, columns=[source.image, source.label], use_pandas_metadata=False)
    held: list[pa.RecordBatch] = []
    for start, stop in bounds:
        try:
            while sum(len(batch) for batch in held) < stop - start:
                held.append(next(batches))
        except (pa.ArrowInvalid, OSError) as error:  # a page that is damaged
            raise ValueError(f"this Parquet cannot be read: {error}") from None
        table = pa.Table.from_batches(held)
        held = table.slice(stop - start).to_batches()
        yield _named(table.slice(0, stop - start), source)


def _named(table: pa.Table, source: Opened) -> pa.Table:
    stored, found = table[source.image], table[source.label]
    if pa.types.is_struct(stored.type):
        stored = pa.chunked_array([chunk.field("bytes") for chunk in stored.chunks], stored.type.field("bytes").type)
    if pa.types.is_dictionary(found.type):
        found = found.cast(found.type.value_type)
    return pa.table({"image": stored, "label": found}).replace_schema_metadata(source.metadata)


def _column(schema: pa.Schema, names: Sequence[str], fits: Callable[[pa.DataType], bool], what: str) -> str:
    fitting = [field.name for field in schema if fits(field.type)]
    named = [name for name in names if name in fitting]
    if named or len(fitting) == 1:
        return (named or fitting)[0]
    columns = ", ".join(f"{field.name} ({field.type})" for field in schema)
    raise ValueError(f"there must be a column {' or '.join(names[:2])} {what}; the columns are {columns}")


def _holds_images(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _holds_images(kind.field("bytes").type)
    kinds = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
    return any(is_one(kind) for is_one in kinds)


def _is_label(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    return any(is_one(kind) for is_one in (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string))


def _declared(metadata: Mapping[bytes, bytes]) -> list[str] | None:
    """The names of the classes that the file itself declares, as Hugging Face's or this project's files do."""
    try:
        if b"classes" in metadata:
            return [str(name) for name in json.loads(metadata[b"classes"])]
        features = json.loads(metadata[b"huggingface"])["info"]["features"]
        feature = features[metadata[_LABEL].decode()]
        return list(feature["names"]) if feature.get("_type") == "ClassLabel" else None
    except (KeyError, TypeError, ValueError, AttributeError):
        return None


def survey(source: Opened) -> dict[str, Any]:
    """Count the rows of a file, and list its labels and the names that it declares for them."""
    try:
        found = source.file.read(columns=[source.label], use_pandas_metadata=False)[source.label]
    except (pa.ArrowInvalid, OSError) as error:  # a page that is damaged
        raise ValueError(f"this Parquet cannot be read: {error}") from None
    if pa.types.is_dictionary(found.type):
        found = found.cast(found.type.value_type)
    values = [value for value in found.unique().to_pylist() if value is not None]
    declared = _declared(source.metadata) if all(isinstance(value, int) for value in values) else None
    if len(values) > _MOST_CLASSES:
        raise ValueError(f"a file has {len(values):,} different labels: its column of labels is none of classes")
    return {"rows": len(found), "labels": sorted(values), "names": declared}


def classes_of(surveyed: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Name of each label: those that all files declare, else the different labels in their order."""
    with_rows = [found for found in surveyed if found["rows"]]
    if with_rows and with_rows[0]["names"] and all(found["names"] == with_rows[0]["names"] for found in with_rows):
        return tuple(with_rows[0]["names"])
    values = {value for found in with_rows for value in found["labels"]}
    if len({type(value) for value in values}) > 1:
        raise ValueError("some files have numbers as labels and others text; give all of them one kind")
    if len(values) < 2:
        raise ValueError(f"there must be two different labels or more, got {sorted(values)}")
    return tuple(str(value) for value in sorted(values))


def rows(
    table: pa.Table, *, size: int, channels: int, classes: Sequence[str]
) -> tuple[list[Decoded | None], list[int | None]]:
    """Images of one size, none where one is missing or cannot be read, and labels, none where they are missing."""
    raw = pa.types.is_fixed_size_binary(table["image"].type)
    shape = _shape(table) if raw else None
    decoded: list[Decoded | None] = []
    for content in table["image"].to_pylist():
        try:
            if content is None:
                decoded.append(None)
            elif shape is not None:
                decoded.append(decode.scaled(np.frombuffer(content, np.uint8).reshape(shape), size, channels))
            else:
                decoded.append(decode.decoded(content, size, channels))
        except decode.Unreadable:
            decoded.append(None)
    labels = table["label"].to_pylist()
    if _declared(table.schema.metadata) != list(classes):
        number = {name: label for label, name in enumerate(classes)}
        labels = [None if label is None else number[str(label)] for label in labels]
    return decoded, labels


def _shape(table: pa.Table) -> tuple[int, int, int]:
    """Of raw images: what the file says, else a square of one or three channels."""
    width = table["image"].type.byte_width
    try:
        height, across, channels = json.loads((table.schema.metadata or {})[b"shape"])
        if height * across * channels == width:
            return height, across, channels
    except (KeyError, ValueError, TypeError):
        pass
    for channels in (1, 3):
        side = math.isqrt(width // channels)
        if side * side * channels == width:
            return side, side, channels
    raise ValueError(f"raw images of {width} bytes are no squares of 1 or 3 channels; store them as PNG")
