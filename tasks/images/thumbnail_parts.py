"""Thumbnails of a raw dataset's rows and facts about its images, in files beside its parts."""

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from storage import commits, tables
from storage.manifest import File, Manifest
from storage.uri import DatasetURI
from tasks.images import row_tables
from tasks.images.class_names import normal
from tasks.learning import thumbnails
from tasks.learning.decode import Decoded

_FOLDER = "thumbnails"
_FACTS = {"width": pa.int64(), "height": pa.int64(), "format": pa.string(), "camera": pa.string()}
"""Of the original image."""
_FIFTHS = ("darkest", "second darkest", "middle", "second brightest", "brightest")
_SCHEMA = pa.schema({"hash": pa.int64(), "thumbnail": pa.binary(thumbnails.SIZE), "gray": pa.float64(), **_FACTS})
"""One row for each row of a part, empty if it has no image; `gray` is its mean brightness, 0 to 1."""


def write(uri: DatasetURI, decoded: Sequence[Decoded | None], *, split: str, index: int) -> File:
    """Write the thumbnails of part `index` of `split`, also if no image of it could be read; return its entry."""
    contents = [image.thumbnail if image else b"" for image in decoded]
    small = _array([content or bytes(thumbnails.SIZE) for content in contents])
    is_missing = np.array([not content for content in contents], bool)
    column = pa.array([content or None for content in contents], _SCHEMA.field("thumbnail").type)
    computed = (thumbnails.hashes(small), thumbnails.brightness(small))
    hashes, gray = (pa.array(values, mask=is_missing) for values in computed)
    facts = [pa.array([image and getattr(image, name) for image in decoded], _FACTS[name]) for name in _FACTS]
    table = pa.table([hashes, column, gray, *facts], schema=_SCHEMA)
    return commits.write_file(uri, f"{_FOLDER}/{split}-{index:05d}.parquet", tables.encode(table))


def entries(raw: Manifest, *, split: str = "") -> list[File]:
    """Return the manifest entries of the thumbnails, of all splits or of one; a download has none."""
    return raw.files_of(f"{_FOLDER}/{split}")


def facts(uri: DatasetURI, raw: Manifest, *, split: str) -> pd.DataFrame | None:
    """Return `gray`, `width`, `height`, `format` and `camera` of each row of a split; None for a download."""
    listed = entries(raw, split=f"{split}-")
    parts = [tables.read_part(uri, file, columns=["gray", *_FACTS]) for file in listed]
    return pa.concat_tables(parts).to_pandas() if parts else None


def describe_rows(uri: DatasetURI, ids: np.ndarray, classes: Sequence[str], *, split: str = "test") -> pd.DataFrame:
    """Return a column of text for each fact by which rows can be divided into slices; none where none is known.

    The dataset at `uri` is raw or prepared; `classes` are those of the rows with `ids` of the raw dataset's `split`.
    """
    described = pd.DataFrame(index=range(len(ids)))
    raw = row_tables.raw_of(uri)
    if not raw or (sources := row_tables.table(*raw)) is None:
        return described
    paths, numbers, _ = row_tables.files_of(sources, split, ids.tolist())
    if not any(number is not None for number in numbers):
        described["folder"] = [_below_class(path, name) for path, name in zip(paths, classes, strict=True)]
    if (images := facts(*raw, split=split)) is None:
        return described
    images = images.iloc[ids].reset_index(drop=True)
    described["shorter side"] = [_octave(side) for side in images[["width", "height"]].min(axis=1).astype(int)]
    described["format"] = images["format"].replace("", None)
    described["camera"] = images["camera"].replace("", "not recorded")
    described["brightness"] = _fifths(images["gray"].to_numpy())
    return described


def find_pairs(
    uri: DatasetURI, raw: Manifest, *, splits: Sequence[str], is_usable: np.ndarray
) -> tuple[np.ndarray, np.ndarray] | None:
    """Return pairs of near duplicates, as row numbers (P, 2) over all `splits`, and their distances.

    None if the dataset has no thumbnails, as that of a download. Holds one file at a time. `is_usable`, bool, tells
    which rows over all `splits` count.
    """
    listed = [file for split in splits for file in entries(raw, split=f"{split}-")]
    if not listed:
        return None
    columns = [tables.read_part(uri, file, columns=["hash"])["hash"].combine_chunks() for file in listed]
    starts = np.cumsum([0, *map(len, columns)])
    hashes = pa.concat_arrays(columns)
    rows = np.flatnonzero(is_usable & hashes.is_valid().to_numpy(zero_copy_only=False))

    def read(numbers: np.ndarray) -> np.ndarray:
        edges = np.searchsorted(rows[numbers], starts)
        parts = [np.empty((0, thumbnails.SIZE), np.uint8)]
        for file, start, first, last in zip(listed, starts[:-1], edges[:-1], edges[1:], strict=True):
            if first < last:
                column = tables.read_part(uri, file, columns=["thumbnail"])["thumbnail"]
                parts.append(_array(column.take(rows[numbers[first:last]] - start).to_pylist()))
        return np.concatenate(parts)

    pairs, distances = thumbnails.find_pairs(hashes.fill_null(0).to_numpy()[rows], read)
    return rows[pairs], distances


def _array(contents: Sequence[bytes]) -> np.ndarray:
    return np.frombuffer(b"".join(contents), np.uint8).reshape(-1, thumbnails.SIZE)


def _below_class(path: str, class_name: str) -> str:
    folders = [normal(folder) for folder in path.split("/")[:-1]]
    below = folders[folders.index(class_name) + 1 :] if class_name in folders else []
    return "/".join(below) or "none below the class"


def _octave(side: int) -> str:
    low = 2 ** (side.bit_length() - 1)
    return f"{low:,} to {2 * low - 1:,} pixels"


def _fifths(values: np.ndarray) -> list[str]:
    edges = np.quantile(values, [0.2, 0.4, 0.6, 0.8])
    bounds = ["below {:.2f}", "{:.2f} to {:.2f}", "{:.2f} to {:.2f}", "{:.2f} to {:.2f}", "from {:.2f}"]
    pairs = [edges[:1], *itertools.pairwise(edges), edges[-1:]]
    names = [f"{name} fifth ({bound.format(*pair)})" for name, bound, pair in zip(_FIFTHS, bounds, pairs, strict=True)]
    return [names[place] for place in np.searchsorted(edges, values, side="right")]
