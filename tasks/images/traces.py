"""Traces of an image in raw datasets of the user's images: rows of its file, or with its pixels."""

import contextlib
import dataclasses
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pandas as pd

from storage import files, manifest, tables
from storage.admin import catalog
from storage.admin.catalog import SCRATCH
from storage.kinds import DatasetURI
from storage.uri import ListingURI, Root
from tasks.images import row_tables, user_images
from tasks.learning import decode, images


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traces:
    """An image as datasets have it."""

    files: frozenset[str]
    """SHA-256 of each file with its pixels."""
    pixels: frozenset[bytes]
    """Digests of its pixels, in every size."""
    rows: pd.DataFrame
    """Its rows: dataset, path, sha256 and digest."""


def find(
    datasets: Sequence[DatasetURI], sha256: Collection[str], pixels: Collection[bytes] = (), *, content: bytes = b""
) -> Traces:
    """Find an image by digests of its file and its pixels, and by the `content` of its file.

    A row is of the image if file or pixels are those of another such row, too: so it is found in another size and in
    another format. Reads every image of the datasets.
    """
    parts = [part for uri in datasets for part in _rows(uri)]
    rows = pd.concat(parts) if parts else pd.DataFrame(columns=["dataset", "path", "sha256", "digest"])
    before, now = None, (frozenset(sha256), frozenset([*pixels, *_decoded(content, datasets)]))
    while before != now:
        before, is_image = now, rows["sha256"].isin(now[0]) | rows["digest"].isin(now[1])
        now = now[0].union(rows["sha256"][is_image]) - {""}, now[1].union(rows["digest"][is_image]) - {b""}
    return Traces(files=now[0], pixels=now[1], rows=rows[is_image])


def is_listed(root: Root, sha256: Collection[str]) -> bool:
    """Return whether a file is in the list of a run that may have ended before its dataset was there."""
    sought = {f"sha256:{digest}" for digest in sha256}
    for folder, _ in catalog.list_folders(root, [SCRATCH]):
        for name in (name for name in files.children(folder) if name.startswith("listing-")):
            if any(file.digest in sought for file in user_images.read(ListingURI(folder.child(name))).files):
                return True
    return False


def _decoded(content: bytes, datasets: Sequence[DatasetURI]) -> Iterator[bytes]:
    """Yield the digest of the pixels that an image file has in each dataset."""
    for side, _, channels in {images.shape_of(manifest.load(uri).columns["metadata"]) for uri in datasets}:
        with contextlib.suppress(decode.Unreadable):
            pixels = decode.decoded(content, side, channels).pixels
            yield row_tables.digests_of(np.frombuffer(pixels, np.uint8)[None])


def _rows(uri: DatasetURI) -> Iterator[pd.DataFrame]:
    """Yield a row for each image of a raw dataset, none of a download; digests that it does not have are empty."""
    raw = manifest.load(uri)
    if (sources := row_tables.table(uri, raw)) is None:
        return
    shape = images.shape_of(raw.columns["metadata"])
    for part in (part for part in raw.files if part.split):
        table = tables.read_part(uri, part, columns=["id", "image"])
        paths, numbers, sha256 = row_tables.files_of(sources, str(part.split), table["id"].to_pylist())
        of_files = ["" if row is not None else digest for digest, row in zip(sha256, numbers, strict=True)]
        arrays, is_valid = images.to_arrays(table, shape)[0], table["image"].is_valid().to_pylist()
        digests = [
            row_tables.digests_of(array[None]) if has else b"" for array, has in zip(arrays, is_valid, strict=True)
        ]
        yield pd.DataFrame({"dataset": uri, "path": paths, "sha256": of_files, "digest": digests})
