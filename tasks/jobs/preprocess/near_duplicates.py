"""Near duplicates among the rows of a dataset: across train and test, across classes, and within a class."""

import dataclasses
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from storage import commits, tables
from storage.manifest import File, Manifest
from storage.uri import DatasetURI
from tasks.jobs import row_origins, thumbnail_parts
from tasks.jobs.preprocess import checks
from tasks.learning import images, thumbnails

KINDS = ("across train and test", "across classes", "within a class")
"""Sorts of pairs, the worst first."""
GROUPED = "near-duplicates"
"""Value of `split.group` that keeps near duplicates in one split."""
_NAME = "near-duplicates"
_LISTED = 100
"""Most pairs of each kind to list in the file; all are counted."""
_IN_STATISTICS = 20
_SIDES = ("first", "second")
_SCHEMA = pa.schema(
    [("kind", pa.string()), ("distance", pa.float64())]
    + [
        (f"{side}_{name}", kind)
        for side in _SIDES
        for name, kind in (
            ("source", pa.string()),
            ("id", pa.int64()),
            ("place", pa.string()),
            ("class", pa.string()),
        )
    ]
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class NearDuplicates:
    """Pairs of near duplicates in a raw dataset."""

    pairs: np.ndarray
    """Positions in the table of checked rows, (P, 2): every pair."""
    counts: dict[str, int]
    """Pairs of each kind."""
    listed: pd.DataFrame
    """The worst pairs of each kind, the most alike first: kind, distance and, of both images, source, row, id, label,
    place and class."""

    def statistics(self) -> dict[str, Any]:
        """Return the count of each kind, and the first pairs by their places, for the manifest."""
        named: dict[str, Any] = {}
        for kind in KINDS:
            first = self.listed[self.listed["kind"] == kind].head(_IN_STATISTICS)
            pairs = [list(pair) for pair in zip(first["first_place"], first["second_place"], strict=True)]
            named[kind] = {"count": self.counts[kind], "first": pairs}
        return named

    def write(self, uri: DatasetURI) -> File:
        """Write the listed pairs; return the file's manifest entry."""
        table = pa.Table.from_pandas(self.listed, schema=_SCHEMA, preserve_index=False)
        return commits.write_file(uri, f"{_NAME}.parquet", tables.encode(table))


def find(uri: DatasetURI, raw: Manifest, checked: pd.DataFrame) -> NearDuplicates | None:
    """Find the near duplicates among the usable rows of `checked`; None if the raw dataset has no thumbnails."""
    is_usable = (checked["reason"] == "").to_numpy()
    near = thumbnail_parts.find_pairs(uri, raw, splits=sorted(checks.SPLITS), is_usable=is_usable)
    if near is None:
        return None
    pairs, distances = near
    is_test, labels = (checked["source"] == "test").to_numpy(), checked["label"].to_numpy(np.int64)
    across_splits, across_classes = (values[pairs[:, 0]] != values[pairs[:, 1]] for values in (is_test, labels))
    kinds = np.where(across_splits, 0, np.where(across_classes, 1, 2))
    order = np.lexsort((pairs[:, 1], pairs[:, 0], distances, kinds))
    worst = np.concatenate([order[kinds[order] == kind][:_LISTED] for kind in range(len(KINDS))])
    table = pd.DataFrame({"kind": np.array(KINDS)[kinds[worst]], "distance": distances[worst]})
    sources, classes = row_origins.table(uri, raw), images.classes_of(raw.columns["metadata"])
    for number, side in enumerate(_SIDES):
        rows = checked.iloc[pairs[worst, number]][["source", "row", "id", "label"]].reset_index(drop=True)
        rows = rows.astype({"source": str}).assign(place=checks.places(rows, sources))
        rows["class"] = [classes[label] for label in rows["label"]]
        table = table.join(rows.add_prefix(f"{side}_"))
    counts = np.bincount(kinds, minlength=len(KINDS)).tolist()
    return NearDuplicates(pairs=pairs, counts=dict(zip(KINDS, counts, strict=True)), listed=table)


def keep_together(checked: pd.DataFrame, pairs: np.ndarray) -> pd.DataFrame:
    """Give all rows of a group of near duplicates the digest of one of its images, so that they get one split.

    It is the smallest digest, whatever the order of the rows.
    """
    digests, number = np.unique(checked["digest"].to_numpy(np.int64), return_inverse=True)
    return checked.assign(digest=digests[thumbnails.groups(number[pairs], len(digests))][number])


def read(uri: DatasetURI, prepared: Manifest) -> list[dict[str, Any]]:
    """Read the listed pairs, the worst first; empty if the dataset records none."""
    entries = [file for file in prepared.files if file.path.startswith(f"{_NAME}-")]
    return tables.read_part(uri, entries[0]).to_pylist() if entries else []
