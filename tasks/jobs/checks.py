"""What a raw dataset must be like: which rows cannot be used and why, and when that leaves too little."""

import hashlib
import json
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from storage import tables
from storage.manifest import Manifest
from storage.uri import DatasetURI
from tasks.jobs import driver
from tasks.jobs.engine import Engine
from tasks.jobs.spec import SOURCES
from tasks.learning import images

SPLITS = ("train", "test")
"""Of a raw dataset."""
_IDS_SHOWN = 20
"""How many of the test rows that also stand in train are named; all are counted."""


def check_schema(raw: Manifest) -> pa.Schema:
    """The schema that every part must have; raises `ValueError` when it is not one of images with labels."""
    metadata = raw.columns.get("metadata", {})
    try:
        columns = images.schema(json.loads(metadata["shape"]), json.loads(metadata["classes"]))
    except (KeyError, TypeError, ValueError):
        raise ValueError("the raw dataset's manifest names no image shape and classes: it holds no images") from None
    expected = tables.describe(columns)["columns"]
    if raw.columns.get("columns") != expected:
        raise ValueError(f"schema must be {expected}, got {raw.columns.get('columns')}")
    return columns


def check_rows(uri: DatasetURI, raw: Manifest, columns: pa.Schema, *, num_classes: int, engine: Engine) -> pd.DataFrame:
    """Every row and why it cannot be used, if so; raises `ValueError` for a split without rows or another schema.

    Columns source, row (number in its split), id, label, digest (of the image) and reason.
    """
    for split in SPLITS:
        if not any(file.rows for file in raw.split(split)):
            raise ValueError(f"the raw dataset has no rows in split {split!r}")
    frames: dict[str, list[pd.DataFrame]] = {split: [] for split in SPLITS}
    expected = tables.describe(columns)["columns"]
    done, total = 0, sum(file.rows or 0 for split in SPLITS for file in raw.split(split))
    for number, split in enumerate(SPLITS):
        for table in engine.map(uri, raw.split(split), _checked, expected=expected, num_classes=num_classes):
            source = pd.Categorical.from_codes(np.full(len(table), number), categories=pd.Index(SPLITS))
            frames[split].append(table.to_pandas(types_mapper=pd.ArrowDtype).assign(source=source))
            done += len(table)
            driver.progress("rows checked", done, total, fraction=done / total / 2)
    # In the order of source and row: by itself, since they come in that of row.
    checked = pd.concat([frame for split in sorted(SPLITS) for frame in frames[split]], ignore_index=True)
    again = checked.duplicated(["source", "id"]) & (checked["reason"] == "")
    checked.loc[again, "reason"] = "id appears twice"
    return pd.DataFrame(checked)


def _checked(table: pa.Table, *, expected: dict[str, str], num_classes: int) -> pa.Table:
    found = tables.describe(table.drop_columns("row").schema)["columns"]
    if found != expected:
        raise ValueError(f"a part's schema must be {expected}, as the manifest says, got {found}")
    label = table["label"].to_pandas()
    reason = np.full(len(table), "", dtype=object)
    reason[table["image"].is_null().to_numpy()] = "image is missing"
    reason[((label < 0) | (label >= num_classes)).to_numpy()] = f"label is not in 0..{num_classes - 1}"
    reason[label.isna().to_numpy()] = "label is missing"
    reason[(table["id"].to_pandas() < 0).to_numpy()] = "id is negative"
    reason[table["id"].is_null().to_numpy()] = "id is missing"
    return pa.table(
        {
            "row": table["row"],
            "id": table["id"].fill_null(-1),
            "label": table["label"].fill_null(-1),
            "digest": [_digest(image) for image in table["image"].to_pylist()],
            "reason": reason.astype(str),
        }
    )


def _digest(image: bytes | None) -> int:
    """The same for the same pixels, and for others hardly ever."""
    return int.from_bytes(hashlib.blake2b(image or b"", digest_size=8).digest(), "little", signed=True)


def check_share(checked: pd.DataFrame, *, limit: float) -> pd.DataFrame:
    """The rows that cannot be used, unless they are more than the share `limit`, which raises `ValueError`."""
    quarantined: pd.DataFrame = checked[checked["reason"] != ""].drop(columns="digest").astype({"source": "str"})
    if len(quarantined) > limit * len(checked):
        reasons = dict(Counter(quarantined["reason"]))
        raise ValueError(
            f"{len(quarantined)} of {len(checked)} raw rows cannot be used ({reasons}), more than max_quarantined="
            f"{limit} allows; mend the data or raise it with --set max_quarantined=..."
        )
    return quarantined


def with_files(quarantined: pd.DataFrame, uri: DatasetURI, raw: Manifest) -> pd.DataFrame:
    """With columns `path` and `problem`: the file that each row came from, where the raw dataset says so."""
    listed = [file for file in raw.files if file.path.startswith(f"{SOURCES}-")]
    if not listed:
        return quarantined
    sources = tables.read_part(uri, listed[0]).to_pandas()
    named = []
    for split, rows in quarantined.groupby("source"):
        here = sources[sources["split"] == split]
        number = np.searchsorted(here["first_id"], rows["row"], side="right") - 1
        found = here.iloc[number]
        named.append(rows.assign(path=found["path"].to_numpy(), problem=found["problem"].to_numpy()))
    return pd.concat(named) if named else quarantined


def check_complete(placed: pd.DataFrame, classes: tuple[str, ...]) -> None:
    """Raise `ValueError` where nothing is left to learn from or to judge by; say what cannot be judged."""
    for split in ("train", "validation", "test"):
        if not (placed["split"] == split).any():
            raise ValueError(f"no usable row is left for split {split!r}")
    missing = {
        split: [name for label, name in enumerate(classes) if label not in present]
        for split, present in placed.groupby("split")["label"].unique().map(set).items()
    }
    if missing["train"]:
        raise ValueError(f"no training row is left of class {', '.join(missing['train'])}")
    if missing["test"]:
        driver.tell(f"WARNING: no test row is of class {', '.join(missing['test'])}: nothing will be known of it")


def test_rows_in_train(checked: pd.DataFrame) -> dict[str, Any]:
    """How many usable test rows have the image of a row that is trained or validated on, and the first of their ids."""
    usable = checked["reason"] == ""
    test = checked.loc[usable & (checked["source"] == "test"), ["id", "digest"]]
    train = checked.loc[usable & (checked["source"] == "train"), "digest"]
    ids = sorted(test.loc[test["digest"].isin(train), "id"].tolist())
    shown = ids[:_IDS_SHOWN]
    if ids:
        driver.tell(f"WARNING: {len(ids)} test rows also stand in train, which flatters the metrics: ids {shown}")
    return {"count": len(ids), "ids": shown}
