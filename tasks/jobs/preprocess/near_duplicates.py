"""Near duplicates among the rows of a dataset: across train and test, across classes, and within a class."""

from typing import get_args

import numpy as np
import pandas as pd

from storage.manifest import Manifest
from storage.statistics import NamedRow, NearDuplicates, Pair, PairKind
from storage.uri import DatasetURI
from tasks.images import row_tables, thumbnail_parts
from tasks.jobs.preprocess import checks
from tasks.learning import images, thumbnails

KINDS: tuple[PairKind, ...] = get_args(PairKind)
"""Sorts of pairs, the worst first."""
GROUPED = "near-duplicates"
"""Value of `split.group` that keeps near duplicates in one split."""
_LISTED = 100
"""Most pairs of each kind to list; all are counted."""


def find(
    uri: DatasetURI, raw: Manifest, checked: pd.DataFrame
) -> tuple[np.ndarray, dict[PairKind, NearDuplicates] | None]:
    """Find the near duplicates among the usable rows of `checked`; return their positions there, (P, 2).

    Return also for the manifest their number and the most alike of each kind; None without thumbnails.
    """
    is_usable = (checked["reason"] == "").to_numpy()
    near = thumbnail_parts.find_pairs(uri, raw, splits=sorted(checks.SPLITS), is_usable=is_usable)
    if near is None:
        return np.empty((0, 2), np.int64), None
    pairs, distances = near
    is_test, labels = (checked["source"] == "test").to_numpy(), checked["label"].to_numpy(np.int64)
    across_splits, across_classes = (values[pairs[:, 0]] != values[pairs[:, 1]] for values in (is_test, labels))
    kinds = np.where(across_splits, 0, np.where(across_classes, 1, 2))
    order = np.lexsort((pairs[:, 1], pairs[:, 0], distances))
    sources, classes = row_tables.table(uri, raw), images.classes_of(raw.columns["metadata"])

    def described(positions: np.ndarray) -> list[NamedRow]:
        rows = checked.iloc[positions][["source", "row", "id", "label"]].reset_index(drop=True).astype({"source": str})
        rows = rows.assign(place=checks.places(rows, sources))
        return [
            NamedRow(source=row["source"], row=row["row"], place=row["place"], class_name=classes[row["label"]])
            for row in rows.to_dict("records")
        ]

    found: dict[PairKind, NearDuplicates] = {}
    for number, kind in enumerate(KINDS):
        of_kind = order[kinds[order] == number]
        worst = of_kind[:_LISTED]
        both = zip(distances[worst].tolist(), *(described(pairs[worst, side]) for side in (0, 1)), strict=True)
        named = tuple(Pair(distance=distance, first=first, second=second) for distance, first, second in both)
        found[kind] = NearDuplicates(count=len(of_kind), worst=named)
    return pairs, found


def keep_together(checked: pd.DataFrame, pairs: np.ndarray) -> pd.DataFrame:
    """Give all rows of a group of near duplicates the digest of one of its images, so that they get one split.

    It is the smallest digest, whatever the order of the rows.
    """
    digests, number = np.unique(checked["digest"].to_numpy(np.int64), return_inverse=True)
    return checked.assign(digest=digests[thumbnails.groups(number[pairs], len(digests))][number])
