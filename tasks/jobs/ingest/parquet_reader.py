"""Reader of the user's Parquet files: their columns `image` and `label`, the class names, and the rows."""

import contextlib
import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from storage.tables import open_parquet
from tasks.jobs.ingest import class_names, pieces
from tasks.jobs.ingest.class_names import FileLabels
from tasks.jobs.spec import UserFile
from tasks.learning import decode
from tasks.learning.decode import Decoded

_IMAGE, _LABEL = "image", "label"
LABELS = "column label"
"""Where the labels are, in words."""
_EXPECTED = (
    "expected image (the bytes of image files, or Hugging Face's struct with bytes) and label (text, or whole numbers "
    "with class names in the metadata), such as pa.table({'image': [png_bytes], 'label': ['cat']})"
)
_MOST_CLASSES = 10_000
_BATCH_ROWS = 256
_BUFFER_BYTES = 2**20
"""Rows to decode, and bytes to read, at a time, since images may be large."""


@dataclasses.dataclass(frozen=True)
class Opened:
    """A Parquet file of images of which only the footer has been read."""

    file: pq.ParquetFile  # noqa: TID251 (opened by storage.tables)
    is_labelled: bool
    """Whether the column `label` can be used."""

    def declared(self) -> list[str] | None:
        """Return the class names that the file's metadata declare, as Hugging Face's and this project's files do."""
        metadata = self.file.schema_arrow.metadata or {}
        try:
            if b"classes" in metadata:
                names = json.loads(metadata[b"classes"])
            else:
                feature = json.loads(metadata[b"huggingface"])["info"]["features"][_LABEL]
                names = feature["names"] if feature.get("_type") == "ClassLabel" else []
            return [class_names.normal(str(name)) for name in names] or None
        except (KeyError, TypeError, ValueError, AttributeError):
            return None


def opened(source: Path | BinaryIO, *, must_be_labelled: bool = True) -> Opened:
    """Open a file and check its columns; raise `ValueError` that shows them if they are not as expected."""
    with _damage_as_value_error():
        file = open_parquet(source, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    types = {field.name: field.type for field in file.schema_arrow}
    is_labelled = _is_label(types.get(_LABEL))
    if not _holds_images(types.get(_IMAGE)) or (must_be_labelled and not is_labelled):
        columns = ", ".join(f"{name} ({kind})" for name, kind in types.items())
        raise ValueError(f"the columns are {columns}; {_EXPECTED}")
    return Opened(file, is_labelled)


def survey(source: Opened, file: UserFile) -> FileLabels:
    """Count a labelled file's rows, its rows of each class and its rows without a label."""
    with _damage_as_value_error():
        labels = source.file.read(columns=[_LABEL], use_pandas_metadata=False)[_LABEL]
    rows = {row["values"]: row["counts"] for row in labels.value_counts().to_pylist()}
    values = sorted(value for value in rows if not class_names.is_missing(value))
    if len(values) > _MOST_CLASSES:
        raise ValueError(f"column label has {len(values):,} different values; use a column of classes")
    declared = source.declared() if pa.types.is_integer(labels.type) else None
    if declared is None and pa.types.is_integer(labels.type):
        raise ValueError(f"column label has whole numbers, but the metadata has no class names; {_EXPECTED}")
    if twice := [name for name, number in Counter(declared or ()).items() if number > 1]:
        raise ValueError(f"its metadata has two classes named {twice[0]!r}; names must be unique")
    counts: Counter[str] = Counter()
    for value in values:
        if (name := class_names.name_of(value, declared)) is not None:
            counts[name] += rows[value]
    return FileLabels(
        path=file.path,
        split=file.split,
        rows=len(labels),
        unlabelled=len(labels) - sum(rows[value] for value in values),
        names=declared,
        counts=dict(counts),
    )


def tables(source: Opened, bounds: Iterable[tuple[int, int]]) -> Iterator[pa.Table]:
    """Yield columns `image` and, if there are any, `label` of each range in `bounds`, which must be consecutive.

    Holds one range at a time.
    """
    columns = [_IMAGE, _LABEL] if source.is_labelled else [_IMAGE]
    batches = source.file.iter_batches(_BATCH_ROWS, columns=columns, use_pandas_metadata=False)
    held: list[pa.RecordBatch] = []
    for start, stop in bounds:
        with _damage_as_value_error():
            while sum(len(batch) for batch in held) < stop - start:
                held.append(next(batches))
        table = pa.Table.from_batches(held)
        held = table.slice(stop - start).to_batches()
        yield table.slice(0, stop - start)


def rows(
    source: Opened, table: pa.Table, *, size: int, channels: int, classes: Sequence[str], with_thumbnails: bool = False
) -> tuple[list[Decoded | None], list[int | None], list[str]]:
    """Return images of one size (None if missing or unreadable), labels (None if missing), and problems.

    `table` is one of `tables`. Labels are numbers of `classes`, whatever numbers the file itself uses for them. The
    problem of a readable image is empty.
    """
    decoded: list[Decoded | None] = []
    problems: list[str] = []
    for stored in table[_IMAGE].to_pylist():
        content = stored["bytes"] if isinstance(stored, dict) else stored
        image, problem = None, ""
        try:
            if content is None:
                problem = pieces.MISSING
            else:
                image = decode.decoded(content, size, channels, with_thumbnail=with_thumbnails)
        except decode.Unreadable as error:
            problem = str(error)
        decoded.append(image)
        problems.append(problem)
    labels = table[_LABEL].to_pylist() if source.is_labelled else [None] * len(table)
    return decoded, class_names.numbers(labels, source.declared(), classes), problems


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


def _holds_images(kind: pa.DataType | None) -> bool:
    if kind is not None and pa.types.is_struct(kind):
        return kind.get_field_index("bytes") >= 0 and _holds_images(kind.field("bytes").type)
    return kind in (pa.binary(), pa.large_binary())


def _is_label(kind: pa.DataType | None) -> bool:
    return kind is not None and (pa.types.is_integer(kind) or kind in (pa.string(), pa.large_string()))
