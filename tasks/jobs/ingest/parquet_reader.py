"""Reader of Parquet files from any source: finds the columns of images and labels, the classes, and the rows."""

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import unquote

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage.tables import open_parquet
from tasks.jobs.ingest import class_names, pieces
from tasks.jobs.ingest.class_names import FileLabels
from tasks.jobs.spec import UserFile
from tasks.learning import decode
from tasks.learning.decode import Decoded

_IMAGE_NAMES = ("image", "img")
_LABEL_NAMES = ("label", "labels", "class", "target", "fine_label")
"""Names of columns and folders with labels."""
_NO_VALUE = "__HIVE_DEFAULT_PARTITION__"
"""Value of a folder for rows without a label, as Hive and Spark write it."""
_MOST_CLASSES = 10_000
_BATCH_ROWS = 256
_BUFFER_BYTES = 2**20
"""Rows to decode, and bytes to read, at a time, since images may be large."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LabelSource:
    """Where a file has its labels: in a column, or in a folder such as `label=cat`; neither if it has none."""

    column: str | None = None
    folder: str | None = None
    """Key of the folder, such as `label`."""
    value: str | None = None
    """Label of all rows, as that folder says it; None for rows without a label."""

    def __str__(self) -> str:
        return f"column {self.column}" if self.column else f"folder {self.folder}="


@dataclasses.dataclass(frozen=True)
class Opened:
    """A Parquet file of images of which only the footer has been read."""

    file: pq.ParquetFile  # noqa: TID251 (opened by storage.tables)
    image: str
    """Name of the column of images."""
    label: LabelSource

    def declared(self) -> list[str] | None:
        """Return the class names that the file's metadata declare, as Hugging Face's and this project's files do."""
        metadata = self.file.schema_arrow.metadata or {}
        try:
            if b"classes" in metadata:
                names = json.loads(metadata[b"classes"])
            else:
                feature = json.loads(metadata[b"huggingface"])["info"]["features"][self.label.column]
                names = feature["names"] if feature.get("_type") == "ClassLabel" else []
            return [class_names.normal(str(name)) for name in names] or None
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


def opened(source: Path | BinaryIO, *, path: str = "", must_be_labelled: bool = True) -> Opened:
    """Open a file and find its column of images and its labels; raise `ValueError` if it cannot.

    `path` is the file's path below the user's folder, whose folders may say its label (`label=cat`).
    """
    with _damage_as_value_error():
        file = open_parquet(source, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    schema = file.schema_arrow
    return Opened(file, _image_column(schema), _find_labels(schema, path, is_required=must_be_labelled))


def survey(source: Opened, file: UserFile) -> FileLabels:
    """Count a file's rows and its rows without a label; list its labels and the class names that it declares."""
    with _damage_as_value_error():
        columns = [source.label.column] if source.label.column else []
        labels = _labels(source.file.read(columns=columns, use_pandas_metadata=False), source.label)
    counts = {row["values"]: row["counts"] for row in labels.value_counts().to_pylist()}
    values = [value for value in counts if not class_names.is_missing(value)]
    if len(values) > _MOST_CLASSES:
        raise ValueError(f"the label column has {len(values):,} different values; use a column of classes")
    declared = source.declared() if all(isinstance(value, int) for value in values) else None
    if twice := [name for name in declared or () if (declared or []).count(name) > 1]:
        raise ValueError(f"its metadata has two classes named {twice[0]!r}; names must be unique")
    known = {class_names.name_of(value, declared): counts[value] for value in values}
    return FileLabels(
        path=file.path,
        split=file.split,
        rows=len(labels),
        unlabelled=len(labels) - sum(counts[value] for value in values),
        labels=sorted(values),
        names=declared,
        source=str(source.label),
        counts={name: rows for name, rows in known.items() if name is not None},
    )


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
        table = table.slice(0, stop - start)
        images, paths = table[source.image], pa.chunked_array([pa.nulls(len(table), pa.string())])
        if pa.types.is_struct(images.type):
            paths = _field(images, "path") if images.type.get_field_index("path") >= 0 else paths
            images = _field(images, "bytes")
        yield pa.table({"image": images, "label": _labels(table, source.label), "path": paths})


def rows(
    source: Opened, table: pa.Table, *, size: int, channels: int, classes: Sequence[str], with_thumbnails: bool = False
) -> tuple[list[Decoded | None], list[int | None], list[str]]:
    """Return images of one size (None if missing or unreadable), labels (None if missing), and problems.

    `table` is one of `tables`. Labels are numbers of `classes`, whatever numbers the file itself uses for them. The
    problem of a readable image is empty.
    """
    shape = _shape(source) if pa.types.is_fixed_size_binary(table["image"].type) else None
    decoded: list[Decoded | None] = []
    problems: list[str] = []
    for content, path in zip(table["image"].to_pylist(), table["path"].to_pylist(), strict=True):
        image, problem = None, ""
        try:
            if content is None:
                problem = f"the file name {path!r} instead of the image: store its bytes" if path else pieces.MISSING
            elif shape is not None:
                pixels = np.frombuffer(content, np.uint8).reshape(shape)
                image = decode.scaled(pixels, size, channels, with_thumbnail=with_thumbnails)
            else:
                image = decode.decoded(content, size, channels, with_thumbnail=with_thumbnails)
        except decode.Unreadable as error:
            problem = str(error)
        decoded.append(image)
        problems.append(problem)
    return decoded, class_names.numbers(table["label"].to_pylist(), source.declared(), classes), problems


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


def _find_labels(schema: pa.Schema, path: str, *, is_required: bool) -> LabelSource:
    """Return where a file has its labels; raise `ValueError` if that is ambiguous, or it has none but must have."""
    folders = dict(folder.split("=", 1) for folder in path.split("/")[:-1] if "=" in folder)
    keys = [key for key in folders if key.lower() in _LABEL_NAMES]
    columns = [name for name in _LABEL_NAMES if name in schema.names]
    if len(keys) + len(columns) > 1:
        places = [*(f"column {name}" for name in columns), *(f"folder {key}=" for key in keys)]
        raise ValueError(f"labels are in {' and in '.join(places)}; keep one, and rename the other")
    if keys:
        value = unquote(folders[keys[0]])
        return LabelSource(folder=keys[0], value=None if value == _NO_VALUE else value)
    if columns and _is_label(schema.field(columns[0]).type):
        return LabelSource(column=columns[0])
    if not is_required:
        return LabelSource()
    if columns:
        kind = schema.field(columns[0]).type
        raise ValueError(f"column {columns[0]} has neither whole numbers nor text, but {kind}; convert it")
    others = f" and the folders {', '.join(f'{key}=' for key in folders)}" if folders else ""
    raise ValueError(
        f"there must be a column of labels (whole numbers or text) called {', '.join(_LABEL_NAMES[:-1])} or "
        f"{_LABEL_NAMES[-1]}, or folders label=<class>; the columns are {_described(schema)}{others}: rename the one "
        "with the labels to label"
    )


def _image_column(schema: pa.Schema) -> str:
    """Return the column with a usual name, or the only one that holds images unless another has such a name."""
    fitting: list[str] = [field.name for field in schema if _holds_images(field.type)]
    named = [name for name in _IMAGE_NAMES if name in fitting]
    if named or (len(fitting) == 1 and not set(_IMAGE_NAMES) & set(schema.names)):
        return (named or fitting)[0]
    raise ValueError(
        "there must be a column image (or img) of images: bytes, a struct with bytes, or fixed-size binary, not file "
        f"names; the columns are {_described(schema)}: convert one"
    )


def _holds_images(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _holds_images(kind.field("bytes").type)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind))


def _is_label(kind: pa.DataType) -> bool:
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    return bool(pa.types.is_integer(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind))


def _described(schema: pa.Schema) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in schema)


def _labels(table: pa.Table, source: LabelSource) -> pa.ChunkedArray:
    if source.column is None:
        return pa.chunked_array([pa.array([source.value] * len(table), pa.string())])
    labels = table[source.column]
    return labels.cast(labels.type.value_type) if pa.types.is_dictionary(labels.type) else labels


def _field(structs: pa.ChunkedArray, name: str) -> pa.ChunkedArray:
    return pa.chunked_array([chunk.field(name) for chunk in structs.chunks], structs.type.field(name).type)


def _shape(source: Opened) -> tuple[int, int, int]:
    """Return the shape of raw pixels, as the file's metadata says it."""
    metadata: dict[bytes, Any] = source.file.schema_arrow.metadata or {}
    width = source.file.schema_arrow.field(source.image).type.byte_width
    with contextlib.suppress(KeyError, ValueError, TypeError):
        height, across, channels = json.loads(metadata[b"shape"])
        if height * across * channels == width and 1 <= channels <= 4:
            return height, across, channels
    raise ValueError(
        f"raw images of {width} bytes must have their shape [height, width, channels] in the metadata `shape`; add it, "
        "or store them as PNG"
    )
