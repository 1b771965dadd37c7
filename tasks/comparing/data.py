"""Changes of data: rows that were added, removed, renamed, relabeled, moved to another split, or changed.

The user's image files are compared by their SHA-256, other rows by their pixels.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import pandas as pd

from storage import kinds, tables
from storage.manifest import JSON
from tasks.comparing.results import Results
from tasks.images import row_tables
from tasks.learning import images

SORTS: Final = ("added", "removed", "renamed", "relabeled", "moved", "changed")
"""Sorts of changes; `moved`: to another split; `changed`: another content under the same name."""
_KEYS: Sequence[list[str]] = (
    ["file", "digest"],
    ["digest", "class", "split"],
    ["digest", "class"],
    ["digest"],
    ["file"],
)
"""Columns by which the rows of two datasets are matched, in turn: the content says more than the name."""

NONE: Final[JSON] = {
    "unit": "row",
    "counts": dict.fromkeys(SORTS, 0),
    "by_class": {},
    **dict.fromkeys(SORTS, ()),
}
"""Changes of data that is the same."""


def compare(a: Results, b: Results) -> JSON:
    """Return the changes of the data from `a` to `b`: their numbers, also by class, and their rows.

    By its digest, a row that was renamed, relabeled or moved is not taken for one removed and one added. Rows of
    Parquet and of downloaded data are not renamed: their names are only their places. Raises `ValueError` with the
    next step if rows have no digests, or the size of the images differs.
    """
    sources = [row_tables.table(*side.require(kinds.RAW)) if side.manifest(kinds.RAW) else None for side in (a, b)]
    if all(table is not None and not table["path"].str.lower().str.endswith(".parquet").any() for table in sources):
        unit, read = "file", _image_files
    elif _shape(a) == _shape(b):
        unit, read = "row", _rows
    else:
        raise ValueError(
            "rows are compared by their pixels, and the sizes of the images differ; prepare both in the same way"
        )
    first, second = (read(side, table) for side, table in zip((a, b), sources, strict=True))
    pairs = []
    for keys in _KEYS:
        places = match(first, second, keys)
        matched, others = first.loc[places[0]], second.loc[places[1]].add_suffix("_b")
        pairs.append(matched.reset_index(drop=True).join(others.reset_index(drop=True)))
        first, second = first.drop(places[0]), second.drop(places[1])
    both = pd.concat(pairs, ignore_index=True)
    is_sort = {
        "changed": both["digest"] != both["digest_b"],
        "relabeled": both["class"] != both["class_b"],
        "moved": both["split"] != both["split_b"],
        "renamed": (both["file"] != both["file_b"]) & (unit != "row"),
    }
    sort = np.select(list(is_sort.values()), list(is_sort), default="")
    rows = {"added": _alone(second), "removed": _alone(first)}
    rows |= {name: _pairs(both[sort == name]) for name in SORTS if name in is_sort}
    counts = {name: len(rows[name]) for name in SORTS}
    return {"unit": unit, "counts": counts, "by_class": _by_class(rows)} | rows


def match(a: pd.DataFrame, b: pd.DataFrame, keys: list[str]) -> tuple[pd.Index, pd.Index]:
    """Return the indices of rows of `a` and of `b` that are equal in `keys`; each row is in one pair at most."""
    first, second = (rows[keys].assign(number=rows.groupby(keys).cumcount(), place=rows.index) for rows in (a, b))
    pairs = first.merge(second, on=[*keys, "number"])
    return pd.Index(pairs["place_x"]), pd.Index(pairs["place_y"])


def _alone(rows: pd.DataFrame) -> list[dict[str, str]]:
    columns = ["file", "class", "split"]
    return [{name: row[name] for name in columns} for row in rows.sort_values("file").to_dict("records")]


def _pairs(rows: pd.DataFrame) -> list[dict[str, str]]:
    """Describe rows as they are now; what was different before has `_before` in its name."""
    documents = []
    for row in rows.sort_values("file_b").to_dict("records"):
        now = {name: row[f"{name}_b"] for name in ("file", "class", "split")}
        documents.append(now | {f"{name}_before": row[name] for name in now if row[name] != now[name]})
    return documents


def _by_class(rows: Mapping[str, Sequence[Mapping[str, str]]]) -> dict[str, dict[str, int]]:
    """Count each sort of change by class; for another class as `cat -> dog`."""
    counts: dict[str, Counter[str]] = {}
    for sort, its in rows.items():
        for row in its:
            before = row.get("class_before", row["class"])
            name = row["class"] if before == row["class"] else f"{before} -> {row['class']}"
            counts.setdefault(sort, Counter())[name] += 1
    return {sort: dict(by_class.most_common()) for sort, by_class in counts.items()}


def _image_files(side: Results, sources: pd.DataFrame | None) -> pd.DataFrame:
    assert sources is not None
    names = {"first_id": "id", "path": "file", "sha256": "digest"}
    return sources[["split", *names]].rename(columns=names).merge(_labels(side), how="left", on=["split", "id"])


def _rows(side: Results, sources: pd.DataFrame | None) -> pd.DataFrame:
    uri, _ = side.require(kinds.PREPARED)
    rows: pd.DataFrame = row_tables.read_digests(uri).to_pandas()
    rows["split"] = rows["split"].replace("validation", "train")
    rows["file"] = rows["split"] + " row " + rows["id"].astype(str)
    if sources is None:
        return rows.merge(_labels(side), how="left", on=["split", "id"])
    for split, its in rows.groupby("split"):
        paths, numbers, _ = row_tables.files_of(sources, str(split), its["id"].tolist())
        names = [path if row is None else f"{path} row {row}" for path, row in zip(paths, numbers, strict=True)]
        rows.loc[its.index, "file"] = names
    return rows.merge(_labels(side), how="left", on=["split", "id"])


def _labels(side: Results) -> pd.DataFrame:
    """Read the class of each row of the raw dataset; empty for none and for a label out of range."""
    uri, raw = side.require(kinds.RAW)
    names = np.array([*images.classes_of(raw.columns["metadata"]), ""], object)
    rows = []
    for part in (part for part in raw.files if part.split):
        table = tables.read_part(uri, part, columns=["id", "label"])
        labels = table["label"].fill_null(-1).to_numpy()
        labels = np.where((labels >= 0) & (labels < len(names)), labels, -1)
        rows.append(pd.DataFrame({"split": part.split, "id": table["id"].to_numpy(), "class": names[labels]}))
    return pd.concat(rows, ignore_index=True)


def _shape(side: Results) -> tuple[int, int, int] | None:
    raw = side.manifest(kinds.RAW)
    return images.shape_of(raw.columns["metadata"]) if raw else None
