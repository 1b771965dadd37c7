"""Source of the user's own image files: a piece of work is a part of the dataset."""

import base64
from collections.abc import Sequence
from typing import Any

from storage import process
from tasks.images import content_split, user_files
from tasks.images.pieces import Piece, Work
from tasks.images.user_files import finish as finish
from tasks.learning import images
from tasks.learning.decode import Decoded
from tasks.stages import NEW, IngestSpec, UserFile

_READERS = 8
"""Files that one piece reads in parallel."""
_FRACTION = "test_fraction"
"""Name of the parameter that is set if splits depend on the files' content."""


def to_survey(spec: IngestSpec) -> list[Piece]:
    """List the files of unknown content if content decides the split; else nothing, since each file is a row.

    S3 lists an ETag, which may differ for the same bytes.
    """
    if _FRACTION not in spec.parameters or not (spec.source.is_s3 or _are_grouped(spec)):
        return []
    unknown = [list(file) for file in user_files.listed(spec)]
    bounds = images.part_bounds(len(unknown), images.num_parts(len(unknown), user_files.shape_of(spec)))
    return [{"files": unknown[start:stop]} for start, stop in bounds]


def survey(piece: Piece, spec: IngestSpec) -> Piece:
    """Read some files and return their SHA-256, and if near duplicates are kept together their thumbnails."""
    batch = [UserFile(*entry) for entry in piece["files"]]
    if not _are_grouped(spec):
        digests = process.in_threads(lambda file: user_files.read(spec, file)[1], batch, threads=_READERS)
        return {"sha256": {file.path: digest for file, digest in zip(batch, digests, strict=True)}}
    read = list(process.in_threads(lambda file: _image(spec, file), batch, threads=_READERS))
    return {
        "sha256": {file.path: facts["sha256"] for file, (_, facts) in zip(batch, read, strict=True)},
        "thumbnails": {
            file.path: base64.b64encode(image.thumbnail).decode()
            for file, (image, _) in zip(batch, read, strict=True)
            if image
        },
    }


def plan(spec: IngestSpec, surveyed: Sequence[Piece]) -> Work:
    """Divide the files into parts: each has its number in its split, the id of its first row, and its files."""
    listed, shape, pieces = user_files.listed(spec), user_files.shape_of(spec), []
    if _FRACTION in spec.parameters:
        sha256 = {path: digest for piece_facts in surveyed for path, digest in piece_facts["sha256"].items()}
        if _are_grouped(spec):
            encoded = {path: text for piece_facts in surveyed for path, text in piece_facts["thumbnails"].items()}
            sha256 |= content_split.of_groups({path: sha256[path] for path in encoded}, encoded)
        listed = content_split.with_splits(listed, fraction=spec.parameters[_FRACTION], sha256=sha256)
    for split in ("train", "test", NEW):
        chosen = [file for file in listed if file.split == split]
        entries = [list(file) for file in chosen]  # without names: there may be a million
        encoded_bytes = sum(file.size for file in chosen) if images.store_of(spec.parameters) == images.FILES else 0
        bounds = images.part_bounds(len(entries), images.num_parts(len(entries), shape, encoded_bytes=encoded_bytes))
        for index, (start, stop) in enumerate(bounds):
            piece = {"split": split, "part": index, "first": start, "rows": stop - start}
            pieces.append(piece | {"files": entries[start:stop]})
    return Work(shape=shape, classes=tuple(spec.classes), pieces=pieces, labels=spec.labels)


def make(piece: Piece, spec: IngestSpec, *, classes: tuple[str, ...]) -> Piece:
    """Write one part."""
    batch = [UserFile(*entry) for entry in piece["files"]]
    rows = list(process.in_threads(lambda file: _image(spec, file), batch, threads=_READERS))
    decoded, labels = [image for image, _ in rows], [file.label for file in batch]
    place = {"split": piece["split"], "index": piece["part"], "first": piece["first"]}
    parts = user_files.write_part(spec, decoded, labels, classes, **place)
    sources = [
        facts | {"split": piece["split"], "first_id": piece["first"] + number, "rows": 1, "path": file.path}
        for number, (file, (_, facts)) in enumerate(zip(batch, rows, strict=True))
    ]
    problems = {source["path"]: source["problem"] for source in sources if source["problem"]}
    return user_files.written(piece["split"], parts, labels, sources, problems)


def _are_grouped(spec: IngestSpec) -> bool:
    return "group" in spec.parameters


def _image(spec: IngestSpec, file: UserFile) -> tuple[Decoded | None, dict[str, Any]]:
    content, digest = user_files.read(spec, file)
    image, problem = user_files.decoded(content, spec)
    return image, {"size": file.size, "sha256": digest, "unreadable": int(image is None), "problem": problem}
