"""Source of the user's own Parquet files with images: their columns `image` and `label`; a piece of work is a file."""

import contextlib
import dataclasses
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa
import pyarrow.parquet as pq

from storage import files, tables
from storage.manifest import File
from tasks.images import class_names, user_files
from tasks.images.class_names import FileLabels
from tasks.images.listing import UserFile
from tasks.images.pieces import Piece, Survey, Work, Written
from tasks.images.user_files import finish as finish
from tasks.learning import images
from tasks.stages import Ingest

_IMAGE, _LABEL = "image", "label"
_EXPECTED = (
    "expected image (the bytes of image files, or Hugging Face's struct with bytes) and label (text, or whole numbers "
    "with class names in the metadata), such as pa.table({'image': [png_bytes], 'label': ['cat']})"
)
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
            return [class_names.normal(str(name).encode().decode()) for name in names] or None
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError):  # no such metadata, or no such names
            return None


def plan(stage: Ingest, survey: Survey) -> Work:
    """Assign to each file the number of its first part and the id of its first row in its split."""
    listing, first, part = user_files.listed(stage), Counter[str](), Counter[str]()
    shape, planned = user_files.shape_of(stage), list[Piece]()
    surveyed: list[FileLabels] = survey(_survey, [Piece(files=[file]) for file in listing.files])
    for file, labels in zip(listing.files, surveyed, strict=True):
        split, rows = file.split, labels.rows
        parts = images.num_parts(rows, shape) if rows else 0
        numbers = {"first": first[split], "part": part[split], "num_parts": parts}
        planned.append(Piece(files=[file], split=split, rows=rows, **numbers))
        first[split] += rows
        part[split] += parts
    if stage.is_new:
        return Work(shape=shape, classes=listing.classes, pieces=planned)
    classes = class_names.of_files(surveyed)
    where = class_names.where(listing.labels, surveyed, classes)
    return Work(shape=shape, classes=classes, pieces=planned, labels=where)


def _survey(piece: Piece, stage: Ingest) -> FileLabels:
    """Count the rows of one file and list its labels."""
    (file,) = piece.files
    with _opened(stage, file) as (source, _):
        if stage.is_new:  # the classes are the model's, so the file's labels are not needed
            rows = source.file.metadata.num_rows
            return FileLabels(path=file.path, split=file.split, rows=rows, names=None, counts={})
        return read_labels(source, file)


def make(piece: Piece, stage: Ingest, *, classes: tuple[str, ...]) -> Written:
    """Write the parts of one file, with one part in memory at a time."""
    (file,) = piece.files
    parts: list[File] = []
    labels: list[int | None] = []
    problems: dict[str, str] = {}
    bounds = images.part_bounds(piece.rows, piece.num_parts) if piece.num_parts else []
    with _opened(stage, file) as (source, digest):
        for index, ((start, _), table) in enumerate(zip(bounds, ranges(source, bounds), strict=True)):
            contents = (row["bytes"] if isinstance(row, dict) else row for row in table[_IMAGE].to_pylist())
            rows = [user_files.decoded(content, stage) for content in contents]
            its = table[_LABEL].to_pylist() if source.is_labelled else [None] * len(table)
            its = class_names.numbers(its, source.declared(), classes)
            if stage.is_new:
                its = [None if label not in range(len(classes)) else label for label in its]
            decoded, first = [image for image, _ in rows], piece.first + start
            part = piece.part + index
            parts += user_files.write_part(stage, decoded, its, classes, split=file.split, index=part, first=first)
            labels += its
            problems |= {f"{file.path} row {start + row}": why for row, (_, why) in enumerate(rows) if why}
    facts = {"split": file.split, "first_id": piece.first, "rows": piece.rows, "path": file.path}
    facts |= {"size": file.size, "sha256": digest, "unreadable": len(problems)}
    facts |= {"problem": _problem(list(problems.values()), labels, are_expected=not stage.is_new)}
    return user_files.written(file.split, parts, labels, [facts], problems)


def opened(source: Path | BinaryIO, *, must_be_labelled: bool = True) -> Opened:
    """Open a file and check its columns; raise `ValueError` that shows them if they are not as expected."""
    with _damage_as_value_error():
        file = tables.open_parquet(source, buffer_size=_BUFFER_BYTES, pre_buffer=False)
    types = {field.name: field.type for field in file.schema_arrow}
    kind = types.get(_LABEL, pa.null())
    is_labelled = pa.types.is_integer(kind) or kind in (pa.string(), pa.large_string())
    if not _holds_images(types.get(_IMAGE)) or (must_be_labelled and not is_labelled):
        columns = ", ".join(f"{name} ({kind})" for name, kind in types.items())
        raise ValueError(f"the columns are {columns}; {_EXPECTED}")
    return Opened(file, is_labelled)


def read_labels(source: Opened, file: UserFile) -> FileLabels:
    """Count a labelled file's rows, and its rows of each class."""
    with _damage_as_value_error():
        labels = source.file.read(columns=[_LABEL], use_pandas_metadata=False)[_LABEL]
    rows = {row["values"]: row["counts"] for row in labels.value_counts().to_pylist()}
    values = sorted(value for value in rows if not class_names.is_missing(value))
    class_names.check_number(len(values))
    declared = source.declared() if pa.types.is_integer(labels.type) else None
    if declared is None and pa.types.is_integer(labels.type):
        raise ValueError(
            f"column label has whole numbers, but the metadata has no class names that can be read; {_EXPECTED}"
        )
    if twice := [name for name, number in Counter(declared or ()).items() if number > 1]:
        raise ValueError(f"its metadata has two classes named {twice[0]!r}; names must be unique")
    counts: Counter[str] = Counter()
    for value in values:
        if (name := class_names.name_of(value, declared)) is not None:
            counts[name] += rows[value]
    return FileLabels(path=file.path, split=file.split, rows=len(labels), names=declared, counts=dict(counts))


def ranges(source: Opened, bounds: Iterable[tuple[int, int]]) -> Iterator[pa.Table]:
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


def _problem(problems: Sequence[str], labels: Sequence[int | None], *, are_expected: bool) -> str:
    """Return how many rows of one file cannot be used, and why; empty if all can."""
    sentences = []
    if problems:
        (reason, _), *others = Counter(problems).most_common()
        why = f"{reason}{', and other errors' if others else ''}"
        sentences.append(f"{len(problems)} of {len(labels)} images could not be read: {why}")
    if are_expected and (unlabelled := labels.count(None)):
        sentences.append(f"{unlabelled} of {len(labels)} rows have no label")
    return "; ".join(sentences)


@contextlib.contextmanager
def _opened(stage: Ingest, file: UserFile) -> Iterator[tuple[Opened, str]]:
    """Yield a local copy of one file, opened, and its SHA-256; add the file's name to a `ValueError` inside."""
    with files.workspace(stage.scratch) as folder:
        path = folder / "copy.parquet"
        with path.open("wb") as sink:
            digest = user_files.copy(stage, file, sink)
        try:
            yield opened(path, must_be_labelled=not stage.is_new), digest
        except ValueError as error:
            raise ValueError(f"{user_files.place_of(stage).child(file.path)}: {error}") from None


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
