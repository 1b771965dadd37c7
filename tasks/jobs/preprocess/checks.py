"""Checks of a raw dataset: which rows cannot be used and why, and whether too few are left."""

import hashlib
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from storage.kinds import DatasetURI
from storage.manifest import Manifest
from storage.statistics import Contradictions, Overlap
from storage.terminal import first
from tasks.images import row_tables
from tasks.jobs import events
from tasks.jobs.local_data import LocalData
from tasks.learning import images

SPLITS = ("train", "test")
"""Splits of a raw dataset."""
UNREADABLE = "image could not be read"
"""Reason of a row without an image."""
_COPY = "copy of another test row of its class"
"""Reason for which a test row is left out although it can be used."""
_SHOWN = 20
"""Most test rows that are also in train, and most images in several classes, to list; all are counted."""
_FILES_IN_MESSAGE = 5
"""Most files in a message."""


def check_rows(uri: DatasetURI, raw: Manifest, *, num_classes: int, data: LocalData) -> pd.DataFrame:
    """Return all rows, each with the reason if it is unusable; raise `ValueError` for an empty split.

    Columns: source, row (number in its split), id, label, digest (of the image) and reason (empty if usable).
    """
    for split in SPLITS:
        if not raw.num_rows(split):
            raise ValueError(f"the raw dataset has no rows in split {split!r}")
    frames, done, total = list[pd.DataFrame](), 0, raw.num_rows(*SPLITS)
    for split in sorted(SPLITS):
        rows = data.read_parts(uri, raw.split(split)).map_batches(
            _checked, batch_format="pyarrow", fn_kwargs={"num_classes": num_classes}
        )
        for table in rows.iter_batches(batch_format="pyarrow", batch_size=None, prefetch_batches=0):
            source = pd.Categorical([split] * len(table), categories=pd.Index(SPLITS))
            frames.append(table.to_pandas(types_mapper=pd.ArrowDtype).assign(source=source))
            done += len(table)
            events.progress("rows checked", done, total, fraction=done / total / 2)
    return pd.concat(frames, ignore_index=True)  # sorted by source and row: the rows of a split arrive in order


def _checked(table: pa.Table, *, num_classes: int) -> pa.Table:
    label = table["label"].to_pandas()
    reason = np.full(len(table), "", dtype=object)
    reason[table["image"].is_null().to_numpy()] = UNREADABLE
    reason[((label < 0) | (label >= num_classes)).to_numpy()] = f"label is not in 0..{num_classes - 1}"
    reason[label.isna().to_numpy()] = "label is missing"
    return pa.table(
        {
            "row": table["row"],
            "id": table["id"],
            "label": table["label"].fill_null(-1),
            "digest": [_digest(image) for image in table["image"].to_pylist()],
            "reason": reason.astype(str),
        }
    )


def _digest(image: bytes | None) -> int:
    """Return a hash of 64 bits: equal for equal pixels, almost never equal for different ones."""
    return int.from_bytes(hashlib.blake2b(image or b"", digest_size=8).digest(), "little", signed=True)


def unusable(checked: pd.DataFrame, uri: DatasetURI, raw: Manifest, *, limit: float) -> pd.DataFrame:
    """Return the rows to leave out and why; raise `ValueError` if the share of unusable ones is above `limit`.

    Columns `path` and `problem` describe the file that each row came from, if the raw dataset knows it.
    """
    left_out = checked[checked["reason"] != ""].drop(columns="digest").astype({"source": "str"})
    sources = row_tables.table(uri, raw)
    if sources is not None and len(left_out):
        origins = _origins(left_out, sources)
        left_out = left_out.assign(path=origins["path"].to_numpy(), problem=origins["problem"].to_numpy())
    rows = left_out[left_out["reason"] != _COPY]
    check_share(name_quarantined_files(rows), Counter(rows["reason"]), total=len(checked), limit=limit)
    return left_out


def check_share(names: Sequence[str], num_by_reason: Counter[str], *, total: int, limit: float) -> None:
    """Raise `ValueError` with the first of `names` if the share of unusable rows is above `limit`."""
    if (unusable_rows := num_by_reason.total()) > limit * total:
        reasons = ", ".join(f"{reason}: {count:,}" for reason, count in num_by_reason.items())
        share = math.ceil(100 * unusable_rows / total) / 100
        files = f": {first(names, _FILES_IN_MESSAGE)}" if names else ""
        raise ValueError(
            f"{unusable_rows} of {total} raw rows cannot be used ({reasons}){files}; max_quarantined={limit} "
            f"allows fewer: fix the data, or raise the limit with --set max_quarantined={share:g}"
        )


def name_quarantined_files(quarantined: pd.DataFrame) -> list[str]:
    """Name the files with unusable rows, each with the reason; empty if the raw dataset knows no files."""
    if "path" not in quarantined:
        return []
    shown = quarantined.drop_duplicates("path")
    reasons = shown["problem"].where(shown["problem"] != "", shown["reason"])
    return [f"{path} ({reason})" for path, reason in zip(shown["path"].tolist(), reasons.tolist(), strict=True)]


def _origins(rows: pd.DataFrame, sources: pd.DataFrame) -> pd.DataFrame:
    origins = [
        row_tables.find(sources, str(split), in_split["row"]).set_index(in_split.index)
        for split, in_split in rows.groupby("source", observed=True)
    ]
    return pd.concat(origins).loc[rows.index]


def check_complete(placed: pd.DataFrame, classes: tuple[str, ...]) -> None:
    """Raise `ValueError` for a split without rows or a class without training rows."""
    for split in ("train", "validation", "test"):
        if not (placed["split"] == split).any():
            raise ValueError(f"split {split!r} has no usable rows; add images")
    labels = set(placed.loc[placed["split"] == "train", "label"])
    check_learned([name for label, name in enumerate(classes) if label not in labels])


def check_learned(missing: Sequence[str]) -> None:
    """Raise `ValueError` naming the first of the classes that are `missing` in training, if there are any."""
    if missing:
        raise ValueError(
            f"no usable training rows of class {first(missing, _SHOWN)}; add training images, or remove the class"
        )


def leave_out_copies(checked: pd.DataFrame) -> None:
    """Mark usable test rows with the image of an earlier one of their class, so that each image counts once."""
    test = checked[(checked["reason"] == "") & (checked["source"] == "test")]
    checked.loc[test.index[test.duplicated(["label", "digest"])], "reason"] = _COPY


def test_rows_in_train(checked: pd.DataFrame) -> Overlap:
    """Count usable test rows whose image is also in train or validation, and list the first ids."""
    usable = checked["reason"] == ""
    test = checked.loc[usable & (checked["source"] == "test"), ["id", "digest"]]
    train = checked.loc[usable & (checked["source"] == "train"), "digest"]
    ids = sorted(test.loc[test["digest"].isin(train), "id"].tolist())
    return Overlap(count=len(ids), ids=tuple(ids[:_SHOWN]))


def images_in_two_classes(checked: pd.DataFrame, uri: DatasetURI, raw: Manifest) -> Contradictions:
    """Count images that are in several classes and their usable rows, and list the first of them.

    No model can be right about all rows of such an image. The list names each image with its classes, by its files if
    the raw dataset knows them, else by split and id.
    """
    again = checked[checked.duplicated("digest", keep=False) & (checked["reason"] == "")]
    several = again[again.groupby("digest")["label"].transform("nunique") > 1]
    shown = several[several["digest"].isin(several["digest"].drop_duplicates().head(_SHOWN))]
    shown = shown.drop_duplicates(["digest", "label"])
    shown = shown.assign(place=places(shown, row_tables.table(uri, raw) if len(shown) else None))
    classes = images.classes_of(raw.columns["metadata"])
    named = [
        ", ".join(f"{place} ({classes[label]})" for place, label in zip(rows["place"], rows["label"], strict=True))
        for _, rows in shown.groupby("digest", sort=False)
    ]
    return Contradictions(count=int(several["digest"].nunique()), rows=len(several), named=tuple(named))


def places(rows: pd.DataFrame, sources: pd.DataFrame | None) -> list[str]:
    """Name the file of each row, with the id if the file has several; without a table of `sources`, split and id."""
    if sources is None or not len(rows):
        return [f"{split} id {id_}" for split, id_ in zip(rows["source"], rows["id"], strict=True)]
    files = _origins(rows, sources)
    named = zip(files["path"], files["rows"], rows["id"], strict=True)
    return [path if count == 1 else f"{path} id {id_}" for path, count, id_ in named]
