"""Source of the user's own image files: a piece of work is a part of the dataset."""

import itertools
from collections.abc import Sequence

from storage import manifest, process
from storage.kinds import DatasetURI, EmbeddingsURI
from storage.manifest import JSON
from tasks.images import content_split, embedding_rows, layout, row_tables, user_files
from tasks.images.listing import NEW, UserFile
from tasks.images.pieces import Piece, Survey, Work, Written
from tasks.images.user_files import finish as finish
from tasks.images.user_images import UserImages
from tasks.learning import images
from tasks.learning.decode import Decoded
from tasks.stages import Ingest

_READERS = 8
"""Files that one piece reads in parallel."""


def plan(stage: Ingest, survey: Survey) -> Work:
    listing, shape, pieces = user_files.listed(stage), user_files.shape_of(stage), list[Piece]()
    listed: Sequence[UserFile] = listing.files
    if stage.test_fraction is not None:
        sha256 = _digests(stage, listing, survey)
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


def _digests(stage: Ingest, listing: UserImages, survey: Survey) -> dict[str, str]:
    """Return the SHA-256 that decides the split, by path, of each file for which that is not the listed one.

    S3 lists an ETag, which may differ for the same bytes. The images of a group are kept together.
    """
    listed, sha256 = listing.files, dict[str, str]()
    if stage.group == "near-duplicates":
        if not stage.embeddings:
            raise ValueError("group=near-duplicates needs embeddings of the same images without groups; see embed()")
        return _digests_of_groups(stage.embeddings)
    if user_files.place_of(stage).is_s3:
        bounds = images.part_bounds(len(listed), images.num_parts(len(listed), user_files.shape_of(stage)))
        surveyed = survey(_contents, [Piece(files=listed[start:stop]) for start, stop in bounds])
        sha256 = dict(itertools.chain.from_iterable(surveyed))
    if stage.group == "folder":
        of_file = {file.path: layout.digest_of_folder(file.path, listing.classes[file.label or 0]) for file in listed}
        sha256 |= {path: digest.hex() for path, digest in of_file.items() if digest}
    return sha256


def _digests_of_groups(embeddings: EmbeddingsURI) -> dict[str, str]:
    """Return for each file the SHA-256 of one of its near duplicates."""
    sources = row_tables.table_of(DatasetURI(manifest.load(embeddings).parent("raw", of=embeddings)))
    assert sources is not None, "the images are the user's"
    sha256 = dict(zip(sources["path"], sources["sha256"], strict=True))
    groups = {path: group for (path, _), group in embedding_rows.groups_of_files(embeddings).items()}
    return sha256 | content_split.of_groups(sha256, groups)


def _contents(piece: Piece, stage: Ingest) -> list[tuple[str, str]]:
    digests = process.in_threads(lambda file: user_files.read(stage, file)[1], piece.files, threads=_READERS)
    return [(file.path, digest) for file, digest in zip(piece.files, digests, strict=True)]


def make(piece: Piece, stage: Ingest, *, classes: tuple[str, ...]) -> Written:
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
