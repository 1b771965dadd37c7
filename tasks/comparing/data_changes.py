"""Changes of data: rows that were added, removed, renamed, relabelled, moved to another split, or changed."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import pandas as pd

SORTS: Final = ("added", "removed", "renamed", "relabelled", "moved", "changed")
"""Sorts of changes; `moved`: to another split; `changed`: another content under the same name."""
_KEYS: Sequence[list[str]] = (
    ["file", "digest"],
    ["digest", "class", "split"],
    ["digest", "class"],
    ["digest"],
    ["file"],
)
"""Columns by which the rows of two datasets are matched, in turn: the content says more than the name."""

NONE: Final[Mapping[str, Any]] = {
    "unit": "row",
    "counts": dict.fromkeys(SORTS, 0),
    "by_class": {},
    **dict[str, Any](dict.fromkeys(SORTS, ())),
}
"""Changes of data that is the same."""


def compare(a: pd.DataFrame, b: pd.DataFrame, *, unit: str) -> dict[str, Any]:
    """Return the changes from `a` to `b`, tables of `data_rows.load`: their numbers, also by class, and their rows.

    A row that was renamed, relabelled or moved is told by its digest from one that was removed and another added. Rows
    of Parquet and of downloaded data are not renamed: their names are only their places.
    """
    pairs = []
    for keys in _KEYS:
        first, second = match(a, b, keys)
        pairs.append(a.loc[first].reset_index(drop=True).join(b.loc[second].reset_index(drop=True).add_suffix("_b")))
        a, b = a.drop(first), b.drop(second)
    both = pd.concat(pairs, ignore_index=True)
    is_sort = {
        "changed": both["digest"] != both["digest_b"],
        "relabelled": both["class"] != both["class_b"],
        "moved": both["split"] != both["split_b"],
        "renamed": (both["file"] != both["file_b"]) & (unit != "row"),
    }
    sort = np.select(list(is_sort.values()), list(is_sort), default="")
    rows = {"added": _alone(b), "removed": _alone(a)}
    rows |= {name: _pairs(both[sort == name]) for name in SORTS if name in is_sort}
    counts = {name: len(rows[name]) for name in SORTS}
    return {"unit": unit, "counts": counts, "by_class": _by_class(rows)} | rows


def match(a: pd.DataFrame, b: pd.DataFrame, keys: list[str]) -> tuple[pd.Index, pd.Index]:
    """Return the indices of rows of `a` and of `b` that are equal in `keys`; each row is in one pair at most."""
    first, second = (rows[keys].assign(number=rows.groupby(keys).cumcount(), place=rows.index) for rows in (a, b))
    pairs = first.merge(second, on=[*keys, "number"])
    return pd.Index(pairs["place_x"]), pd.Index(pairs["place_y"])


def _alone(rows: pd.DataFrame) -> list[dict[str, Any]]:
    columns = ["file", "class", "split"]
    return [{name: row[name] for name in columns} for row in rows.sort_values("file").to_dict("records")]


def _pairs(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Describe rows as they are now; what was different before has `_before` in its name."""
    documents = []
    for row in rows.sort_values("file_b").to_dict("records"):
        now = {name: row[f"{name}_b"] for name in ("file", "class", "split")}
        documents.append(now | {f"{name}_before": row[name] for name in now if row[name] != now[name]})
    return documents


def _by_class(rows: Mapping[str, Sequence[Mapping[str, Any]]]) -> dict[str, dict[str, int]]:
    """Count each sort of change by class; for another class as `cat -> dog`."""
    counts: dict[str, Counter[str]] = {}
    for sort, its in rows.items():
        for row in its:
            before = row.get("class_before", row["class"])
            name = row["class"] if before == row["class"] else f"{before} -> {row['class']}"
            counts.setdefault(sort, Counter())[name] += 1
    return {sort: dict(by_class.most_common()) for sort, by_class in counts.items()}
