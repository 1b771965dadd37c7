"""Source of the user's own Parquet files with images: a piece of work is a file."""

import contextlib
import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence

from storage import files, tables
from storage.manifest import File
from tasks.jobs import events, thumbnail_parts
from tasks.jobs.ingest import class_names, parquet_reader, user_files
from tasks.jobs.ingest.class_names import FileLabels
from tasks.jobs.ingest.parquet_reader import Opened
from tasks.jobs.ingest.pieces import Piece, Work
from tasks.jobs.ingest.user_files import finish as finish
from tasks.jobs.spec import IngestSpec, UserFile
from tasks.learning import images
from tasks.learning.decode import Decoded


def to_survey(spec: IngestSpec) -> list[Piece]:
    """List every file, since only the file itself contains its number of rows and its labels."""
    return [{"file": file._asdict()} for file in user_files.listed(spec)]


def survey(piece: Piece, spec: IngestSpec) -> Piece:
    """Count the rows of one file and list its labels."""
    file = UserFile(**piece["file"])
    with _opened(spec, file) as (source, _):
        if spec.is_new:  # the classes are the model's, so the file's labels are not needed
            return {"rows": source.file.metadata.num_rows}
        return dataclasses.asdict(parquet_reader.survey(source, file))


def plan(spec: IngestSpec, surveyed: Sequence[Piece]) -> Work:
    """Assign to each file the number of its first part and the id of its first row in its split."""
    first, part = Counter[str](), Counter[str]()
    shape, planned = user_files.shape_of(spec), []
    for file, survey in zip(user_files.listed(spec), surveyed, strict=True):
        parts = images.num_parts(survey["rows"], shape) if survey["rows"] else 0
        begin = {"first": first[file.split], "part": part[file.split]}
        planned.append({"file": file._asdict(), "parts": parts, "rows": survey["rows"], **begin})
        first[file.split] += survey["rows"]
        part[file.split] += parts
    if spec.is_new:
        return Work(shape=shape, classes=tuple(spec.classes), pieces=planned)
    labels = [FileLabels(**survey) for survey in surveyed]
    classes = class_names.of_files(labels)
    for remark in class_names.remarks(labels, classes):
        events.write_line(f"WARNING: {remark}")
    return Work(shape=shape, classes=classes, pieces=planned, labels=parquet_reader.LABELS)


def make(piece: Piece, spec: IngestSpec, *, classes: tuple[str, ...]) -> Piece:
    """Write the parts of one file, with one part in memory at a time."""
    file = UserFile(**piece["file"])
    size, _, channels = user_files.shape_of(spec)
    parts: list[File] = []
    beside: list[File] = []
    decoded: list[Decoded | None] = []
    labels: list[int | None] = []
    problems: dict[str, str] = {}
    bounds = images.part_bounds(piece["rows"], piece["parts"]) if piece["parts"] else []
    with _opened(spec, file) as (source, digest):
        for (start, _), rows in zip(bounds, parquet_reader.tables(source, bounds), strict=True):
            some, its, wrong = parquet_reader.rows(
                source, rows, size=size, channels=channels, classes=classes, with_thumbnails=not spec.is_new
            )
            if spec.is_new:
                its = [None if label not in range(len(classes)) else label for label in its]
            table = user_files.to_table(piece["first"] + start, some, its, spec, classes)
            index = piece["part"] + len(parts)
            parts.append(tables.write_part(spec.target, table, split=file.split, index=index))
            if not spec.is_new:
                beside.append(thumbnail_parts.write(spec.target, some, split=file.split, index=index))
            decoded += [image and dataclasses.replace(image, pixels=b"", thumbnail=b"") for image in some]
            labels += its
            problems |= {f"{file.path} row {start + row}": why for row, why in enumerate(wrong) if why}
    facts = {"split": file.split, "first_id": piece["first"], "rows": piece["rows"], "path": file.path}
    facts |= {"size": file.size, "sha256": digest, "unreadable": len(problems)}
    facts |= {"problem": _problem(list(problems.values()), labels, are_expected=not spec.is_new)}
    return user_files.written(file.split, [*parts, *beside], decoded, labels, [facts], problems)


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
def _opened(spec: IngestSpec, file: UserFile) -> Iterator[tuple[Opened, str]]:
    """Yield a local copy of one file, opened, and its SHA-256; add the file's name to a `ValueError` inside."""
    with files.workspace(spec.scratch) as folder:
        path = folder / "copy.parquet"
        with path.open("wb") as sink:
            digest = user_files.copy(spec, file, sink)
        try:
            yield parquet_reader.opened(path, must_be_labelled=not spec.is_new), digest
        except ValueError as error:
            raise ValueError(f"{spec.source.child(file.path)}: {error}") from None
