"""Facts about the user's images, such as size, format and camera, in files beside the parts of a raw dataset."""

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from storage import commits, tables
from storage.kinds import DatasetURI
from storage.manifest import File, Manifest
from tasks.images import layout, row_tables
from tasks.learning.decode import Decoded

_FOLDER = "facts"
_SCHEMA = pa.schema(
    {"gray": pa.float64(), "width": pa.int64(), "height": pa.int64(), "format": pa.string(), "camera": pa.string()}
)
"""One row for each row of a part, empty if it has no image: mean brightness, 0 to 1, and facts of the original."""
_FIFTHS = ("darkest", "second darkest", "middle", "second brightest", "brightest")


def write(uri: DatasetURI, decoded: Sequence[Decoded | None], *, split: str, index: int) -> File:
    """Write the facts of part `index` of `split`, also if no image of it could be read; return its entry."""
    columns = [pa.array([image and getattr(image, field.name) for image in decoded], field.type) for field in _SCHEMA]
    table = pa.table(columns, schema=_SCHEMA)
    return commits.write_file(uri, f"{_FOLDER}/{split}-{index:05d}.parquet", tables.encode(table))


def read(uri: DatasetURI, raw: Manifest, *, split: str) -> pd.DataFrame | None:
    """Return the facts of each row of a split; None for a download."""
    parts = [tables.read_part(uri, file) for file in raw.files_of(f"{_FOLDER}/{split}-")]
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
        folders = (layout.below_class(path, name) for path, name in zip(paths, classes, strict=True))
        described["folder"] = ["/".join(names) or "none below the class" for names in folders]
    if (images := read(*raw, split=split)) is None:
        return described
    images = images.iloc[ids].reset_index(drop=True)
    described["shorter side"] = [_octave(side) for side in images[["width", "height"]].min(axis=1).astype(int)]
    described["format"] = images["format"].replace("", None)
    described["camera"] = images["camera"].replace("", "not recorded")
    described["brightness"] = _fifths(images["gray"].to_numpy())
    return described


def _octave(side: int) -> str:
    low = 2 ** (side.bit_length() - 1)
    return f"{low:,} to {2 * low - 1:,} pixels"


def _fifths(values: np.ndarray) -> list[str]:
    edges = np.quantile(values, [0.2, 0.4, 0.6, 0.8])
    bounds = ["below {:.2f}", "{:.2f} to {:.2f}", "{:.2f} to {:.2f}", "{:.2f} to {:.2f}", "from {:.2f}"]
    pairs = [edges[:1], *itertools.pairwise(edges), edges[-1:]]
    names = [f"{name} fifth ({bound.format(*pair)})" for name, bound, pair in zip(_FIFTHS, bounds, pairs, strict=True)]
    return [names[place] for place in np.searchsorted(edges, values, side="right")]
