"""Source of the user's own image files: a piece of work is a part of the dataset."""

import dataclasses
from collections.abc import Sequence

from storage import process
from storage.manifest import JSON
from tasks.images import content_split, user_files
from tasks.images.listing import NEW, UserFile
from tasks.images.pieces import Piece, Work, Written
from tasks.images.user_files import finish as finish
from tasks.learning import images
from tasks.learning.decode import Decoded
from tasks.stages import Ingest

_READERS = 8
"""Files that one piece reads in parallel."""


@dataclasses.dataclass(frozen=True)
class Contents:
    """What decides the split of some files, by path."""

    sha256: dict[str, str]
    thumbnails: dict[str, bytes]
    """Of the images that can be read, if near duplicates are kept together."""


def to_survey(stage: Ingest) -> list[Piece]:
    """List the files of unknown content if content decides the split; else nothing, since each file is a row.

    S3 lists an ETag, which may differ for the same bytes.
    """
    if stage.test_fraction is None or not (user_files.place_of(stage).is_s3 or _are_grouped(stage)):
        return []
    unknown = user_files.listed(stage).files
    bounds = images.part_bounds(len(unknown), images.num_parts(len(unknown), user_files.shape_of(stage)))
    return [Piece(files=unknown[start:stop]) for start, stop in bounds]


def survey(piece: Piece, stage: Ingest) -> Contents:
    """Read some files and return their SHA-256, and if near duplicates are kept together their thumbnails."""
    if not _are_grouped(stage):
        digests = process.in_threads(lambda file: user_files.read(stage, file)[1], piece.files, threads=_READERS)
        return Contents({file.path: digest for file, digest in zip(piece.files, digests, strict=True)}, {})
    read = process.in_threads(lambda file: (file.path, *_image(stage, file)), piece.files, threads=_READERS)
    decoded = list(read)
    return Contents(
        {path: facts["sha256"] for path, _, facts in decoded},
        {path: image.thumbnail for path, image, _ in decoded if image},
    )


def plan(stage: Ingest, surveyed: Sequence[Contents]) -> Work:
    """Divide the files into parts."""
    listing, shape, pieces = user_files.listed(stage), user_files.shape_of(stage), list[Piece]()
    listed: Sequence[UserFile] = listing.files
    if stage.test_fraction is not None:
        sha256 = {path: digest for contents in surveyed for path, digest in contents.sha256.items()}
        if _are_grouped(stage):
            thumbnails = {path: thumbnail for contents in surveyed for path, thumbnail in contents.thumbnails.items()}
            sha256 |= content_split.of_groups({path: sha256[path] for path in thumbnails}, thumbnails)
        listed = content_split.with_splits(listed, fraction=stage.test_fraction, sha256=sha256)
    for split in ("train", "test", NEW):
        chosen = [file for file in listed if file.split == split]
        encoded_bytes = sum(file.size for file in chosen) if stage.store == images.FILES else 0
        bounds = images.part_bounds(len(chosen), images.num_parts(len(chosen), shape, encoded_bytes=encoded_bytes))
        pieces += [
            Piece(files=chosen[start:stop], split=split, rows=stop - start, first=start, part=part)
            for part, (start, stop) in enumerate(bounds)
        ]
    return Work(shape=shape, classes=listing.classes, pieces=pieces, labels=listing.labels)


def make(piece: Piece, stage: Ingest, *, classes: tuple[str, ...]) -> Written:
    """Write one part."""
    rows = list(process.in_threads(lambda file: _image(stage, file), piece.files, threads=_READERS))
    decoded, labels = [image for image, _ in rows], [file.label for file in piece.files]
    split = piece.split
    parts = user_files.write_part(stage, decoded, labels, classes, split=split, index=piece.part, first=piece.first)
    sources = [
        facts | {"split": split, "first_id": piece.first + number, "rows": 1, "path": file.path}
        for number, (file, (_, facts)) in enumerate(zip(piece.files, rows, strict=True))
    ]
    problems = {source["path"]: source["problem"] for source in sources if source["problem"]}
    return user_files.written(split, parts, labels, sources, problems)


def _are_grouped(stage: Ingest) -> bool:
    return stage.group != "none"


def _image(stage: Ingest, file: UserFile) -> tuple[Decoded | None, JSON]:
    content, digest = user_files.read(stage, file)
    image, problem = user_files.decoded(content, stage)
    return image, {"size": file.size, "sha256": digest, "unreadable": int(image is None), "problem": problem}
