"""What is known of the user's own images besides their classes, by which their rows can be divided into slices."""

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from storage.uri import DatasetURI
from tasks.images import row_tables, thumbnail_parts
from tasks.images.class_names import normal

_FIFTHS = ("darkest", "second darkest", "middle", "second brightest", "brightest")


def of_test_rows(uri: DatasetURI, ids: np.ndarray, classes: Sequence[str]) -> pd.DataFrame:
    """Return a column of text for each fact about the test rows of a dataset; no column where none is known.

    Args:
        uri: Dataset, raw or prepared.
        ids: Id of each row.
        classes: Class of each row.
    """
    facts = pd.DataFrame(index=range(len(ids)))
    raw = row_tables.raw_of(uri)
    if not raw or (sources := row_tables.table(*raw)) is None:
        return facts
    paths, numbers, _ = row_tables.files_of(sources, "test", ids.tolist())
    if not any(number is not None for number in numbers):
        facts["folder"] = [_below_class(path, name) for path, name in zip(paths, classes, strict=True)]
    if (images := thumbnail_parts.facts(*raw, split="test")) is None:
        return facts
    images = images.iloc[ids].reset_index(drop=True)
    facts["shorter side"] = [_octave(side) for side in images[["width", "height"]].min(axis=1).astype(int)]
    facts["format"] = images["format"].replace("", None)
    facts["camera"] = images["camera"].replace("", "not recorded")
    facts["brightness"] = _fifths(images["gray"].to_numpy())
    return facts


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
