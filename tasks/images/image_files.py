"""Source of the user's own image files: a piece of work is a part of the dataset."""

import itertools
from collections.abc import Sequence

from storage import process
from storage.manifest import JSON
from tasks.images import content_split, user_files
from tasks.images.listing import NEW, UserFile
from tasks.images.pieces import Piece, Survey, Work, Written
from tasks.images.user_files import finish as finish
from tasks.learning import images
from tasks.learning.decode import Decoded
from tasks.stages import Ingest

_READERS = 8
"""Files that one piece reads in parallel."""


def plan(stage: Ingest, survey: Survey) -> Work:
    """Divide the files into parts."""
    listing, shape, pieces = user_files.listed(stage), user_files.shape_of(stage), list[Piece]()
    listed: Sequence[UserFile] = listing.files
    if stage.test_fraction is not None:
        sha256 = _digests(stage, listed, survey)
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


def _digests(stage: Ingest, listed: Sequence[UserFile], survey: Survey) -> dict[str, str]:
    """Return the SHA-256 that decides the split, by path, of each file for which that is not the listed one.

    S3 lists an ETag, which may differ for the same bytes. Near duplicates are kept together.
    """
    if stage.group == "none" and not user_files.place_of(stage).is_s3:
        return {}
    bounds = images.part_bounds(len(listed), images.num_parts(len(listed), user_files.shape_of(stage)))
    surveyed = survey(_contents, [Piece(files=listed[start:stop]) for start, stop in bounds])
    contents = list(itertools.chain.from_iterable(surveyed))
    sha256 = {path: digest for path, digest, _ in contents}
    thumbnails = {path: thumbnail for path, _, thumbnail in contents if thumbnail}
    return sha256 | content_split.of_groups(sha256, thumbnails)


def _contents(piece: Piece, stage: Ingest) -> list[tuple[str, str, bytes | None]]:
    """Return path and SHA-256 of each file, and its thumbnail if it is an image and near duplicates are to be found."""

    def content_of(file: UserFile) -> tuple[str, str, bytes | None]:
        if stage.group == "none":
            return file.path, user_files.read(stage, file)[1], None
        image, facts = _image(stage, file)
        return file.path, facts["sha256"], image.thumbnail if image else None

    return list(process.in_threads(content_of, piece.files, threads=_READERS))


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


def _image(stage: Ingest, file: UserFile) -> tuple[Decoded | None, JSON]:
    content, digest = user_files.read(stage, file)
    image, problem = user_files.decoded(content, stage)
    return image, {"size": file.size, "sha256": digest, "unreadable": int(image is None), "problem": problem}
