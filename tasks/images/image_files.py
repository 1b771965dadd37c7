"""Source of the user's own image files: a piece of work is a part of the dataset."""

import dataclasses
from collections.abc import Sequence

from storage import process
from storage.manifest import JSON
from tasks.images import content_split, user_files
from tasks.images.pieces import Piece, Work, Written
from tasks.images.user_files import finish as finish
from tasks.learning import images
from tasks.learning.decode import Decoded
from tasks.stages import NEW, IngestSpec, UserFile

_READERS = 8
"""Files that one piece reads in parallel."""
_FRACTION = "test_fraction"
"""Name of the parameter that is set if splits depend on the files' content."""


@dataclasses.dataclass(frozen=True)
class Contents:
    """What decides the split of some files, by path."""

    sha256: dict[str, str]
    thumbnails: dict[str, bytes]
    """Of the images that can be read, if near duplicates are kept together."""


def to_survey(spec: IngestSpec) -> list[Piece]:
    """List the files of unknown content if content decides the split; else nothing, since each file is a row.

    S3 lists an ETag, which may differ for the same bytes.
    """
    if _FRACTION not in spec.parameters or not (spec.source.is_s3 or _are_grouped(spec)):
        return []
    unknown = user_files.listed(spec)
    bounds = images.part_bounds(len(unknown), images.num_parts(len(unknown), user_files.shape_of(spec)))
    return [Piece(files=unknown[start:stop]) for start, stop in bounds]


def survey(piece: Piece, spec: IngestSpec) -> Contents:
    """Read some files and return their SHA-256, and if near duplicates are kept together their thumbnails."""
    if not _are_grouped(spec):
        digests = process.in_threads(lambda file: user_files.read(spec, file)[1], piece.files, threads=_READERS)
        return Contents({file.path: digest for file, digest in zip(piece.files, digests, strict=True)}, {})
    read = process.in_threads(lambda file: (file.path, *_image(spec, file)), piece.files, threads=_READERS)
    decoded = list(read)
    return Contents(
        {path: facts["sha256"] for path, _, facts in decoded},
        {path: image.thumbnail for path, image, _ in decoded if image},
    )


def plan(spec: IngestSpec, surveyed: Sequence[Contents]) -> Work:
    """Divide the files into parts."""
    listed, shape, pieces = user_files.listed(spec), user_files.shape_of(spec), list[Piece]()
    if _FRACTION in spec.parameters:
        sha256 = {path: digest for contents in surveyed for path, digest in contents.sha256.items()}
        if _are_grouped(spec):
            thumbnails = {path: thumbnail for contents in surveyed for path, thumbnail in contents.thumbnails.items()}
            sha256 |= content_split.of_groups({path: sha256[path] for path in thumbnails}, thumbnails)
        listed = content_split.with_splits(listed, fraction=spec.parameters[_FRACTION], sha256=sha256)
    for split in ("train", "test", NEW):
        chosen = [file for file in listed if file.split == split]
        encoded_bytes = sum(file.size for file in chosen) if images.store_of(spec.parameters) == images.FILES else 0
        bounds = images.part_bounds(len(chosen), images.num_parts(len(chosen), shape, encoded_bytes=encoded_bytes))
        pieces += [
            Piece(files=chosen[start:stop], split=split, rows=stop - start, first=start, part=part)
            for part, (start, stop) in enumerate(bounds)
        ]
    return Work(shape=shape, classes=tuple(spec.classes), pieces=pieces, labels=spec.labels)


def make(piece: Piece, spec: IngestSpec, *, classes: tuple[str, ...]) -> Written:
    """Write one part."""
    rows = list(process.in_threads(lambda file: _image(spec, file), piece.files, threads=_READERS))
    decoded, labels = [image for image, _ in rows], [file.label for file in piece.files]
    split = piece.split
    parts = user_files.write_part(spec, decoded, labels, classes, split=split, index=piece.part, first=piece.first)
    sources = [
        facts | {"split": split, "first_id": piece.first + number, "rows": 1, "path": file.path}
        for number, (file, (_, facts)) in enumerate(zip(piece.files, rows, strict=True))
    ]
    problems = {source["path"]: source["problem"] for source in sources if source["problem"]}
    return user_files.written(split, parts, labels, sources, problems)


def _are_grouped(spec: IngestSpec) -> bool:
    return "group" in spec.parameters


def _image(spec: IngestSpec, file: UserFile) -> tuple[Decoded | None, JSON]:
    content, digest = user_files.read(spec, file)
    image, problem = user_files.decoded(content, spec)
    return image, {"size": file.size, "sha256": digest, "unreadable": int(image is None), "problem": problem}
