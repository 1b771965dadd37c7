"""Ray job: from a raw dataset to a prepared one. Checks every row, splits, shuffles globally, measures."""

import hashlib
import json
import time
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import ray
from ray.data import Dataset

from storage import files, manifest, tables
from storage.manifest import File, Manifest
from storage.uri import DatasetURI
from tasks.jobs import driver, parts
from tasks.jobs.spec import PreprocessSpec
from tasks.learning import images

_SPLITS = ("train", "test")
_IDS_SHOWN = 20
"""How many of the test rows that also stand in train are named; all are counted."""


def run(spec: PreprocessSpec) -> None:
    """Commit the prepared dataset, whatever the cluster's size and order of execution: the same rows, the same bytes.

    Rows that cannot be used are left out, counted by reason and listed in the split `quarantine`. Raises `ValueError`
    when the schema is wrong, too many rows are unusable or a split or class is empty.
    """
    started = time.monotonic()
    raw = manifest.load(spec.source)
    columns = _check_schema(raw)
    files.check_space(spec.target, needed=sum(file.size for file in raw.files))
    shape, classes = images.shape_of(raw.columns["metadata"]), images.classes_of(raw.columns["metadata"])
    checked = _check_rows(spec.source, raw, columns, num_classes=len(classes))
    placed = place(checked, seed=spec.parameters["seed"], validation_fraction=spec.parameters["validation_fraction"])
    quarantined = _check_share(checked, limit=spec.parameters["max_quarantined"])
    _check_complete(placed, classes)
    in_train = _test_rows_in_train(placed)
    placed = _number_parts(placed, shape)
    written = _write(spec, raw, placed, columns, shape)
    listed = [File.model_validate_json(row["file"]) for row in written]
    if len(quarantined):
        table = pa.Table.from_pandas(quarantined, preserve_index=False)
        listed.append(tables.write_part(spec.target, table, split="quarantine", index=0))
    statistics = _statistics(written, placed, quarantined, classes, shape)
    manifest.commit(
        spec.target,
        kind="prepared",
        parents={"raw": spec.source},
        parameters=spec.parameters,
        listed=listed,
        schema=tables.describe(columns),
        statistics=statistics
        | {"test_rows_in_train": in_train}
        | {"notice": raw.statistics.get("notice"), "seconds": time.monotonic() - started},
    )


def place(checked: pd.DataFrame, *, seed: int, validation_fraction: float) -> pd.DataFrame:
    """Where each usable row goes, decided by seed and ids alone: all columns but reason, and split and position.

    Of every class the same share of training rows becomes validation, at least one; training and validation rows are in
    a random order over the whole split, test rows in the order of their ids.
    """
    good = checked[checked["reason"] == ""].drop(columns="reason").copy()
    good["key"] = random_keys(good["id"].to_numpy(), seed=seed)
    train = good[good["source"] == "train"].sort_values(["key", "id"])
    rank_in_class = train.groupby("label").cumcount()
    class_size = train.groupby("label")["id"].transform("size")
    in_validation = rank_in_class < np.maximum(1, np.rint(class_size * validation_fraction))
    train["split"] = np.where(in_validation, "validation", "train")
    test = good[good["source"] == "test"].sort_values("id").assign(split="test")
    placed = pd.concat([train, test], ignore_index=True)
    placed["position"] = placed.groupby("split").cumcount()
    return placed.drop(columns="key")


def random_keys(ids: np.ndarray, *, seed: int) -> np.ndarray:
    """One uint64 per id, as if drawn at random, the same on every machine (SplitMix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = ids.astype(np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64) + np.uint64(0x9E3779B97F4A7C15)
        for _ in range(2):
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
    return z


def _check_schema(raw: Manifest) -> pa.Schema:
    """The schema that every part must have."""
    metadata = raw.columns.get("metadata", {})
    try:
        columns = images.schema(json.loads(metadata["shape"]), json.loads(metadata["classes"]))
    except (KeyError, TypeError, ValueError):
        raise ValueError("the raw dataset's manifest names no image shape and classes: it holds no images") from None
    expected = tables.describe(columns)["columns"]
    if raw.columns.get("columns") != expected:
        raise ValueError(f"schema must be {expected}, got {raw.columns.get('columns')}")
    return columns


def _check_rows(uri: DatasetURI, raw: Manifest, columns: pa.Schema, *, num_classes: int) -> pd.DataFrame:
    """Every row and why it cannot be used, if so.

    Columns source, row (number in its split), id, label, digest (of the image) and reason.
    """
    for split in _SPLITS:
        if not any(file.rows for file in raw.split(split)):
            raise ValueError(f"the raw dataset has no rows in split {split!r}")
    frames = []
    listed = [file for split in _SPLITS for file in raw.split(split)]
    for split in _SPLITS:
        dataset = parts.read(uri, parts.whole(raw.split(split)), numbered=True).map_batches(
            _checked,
            batch_format="pyarrow",
            batch_size=None,
            fn_kwargs={"expected": tables.describe(columns)["columns"], "num_classes": num_classes},
        )
        for batch in dataset.iter_batches(batch_format="pandas", batch_size=None, prefetch_batches=0):
            frames.append(batch.assign(source=split))
            done, total = sum(map(len, frames)), sum(file.rows or 0 for file in listed)
            driver.progress("rows checked", done, total, fraction=done / total / 2)
    checked = pd.concat(frames, ignore_index=True).sort_values(["source", "row"], ignore_index=True)
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


def _check_share(checked: pd.DataFrame, *, limit: float) -> pd.DataFrame:
    quarantined: pd.DataFrame = checked[checked["reason"] != ""].drop(columns="digest")
    if len(quarantined) > limit * len(checked):
        reasons = dict(Counter(quarantined["reason"]))
        raise ValueError(
            f"{len(quarantined)} of {len(checked)} raw rows cannot be used ({reasons}), more than max_quarantined="
            f"{limit} allows; mend the data or raise it with --set max_quarantined=..."
        )
    return quarantined


def _check_complete(placed: pd.DataFrame, classes: tuple[str, ...]) -> None:
    """Raise `ValueError` where nothing is left to learn from or to judge by; say what cannot be judged."""
    for split in ("train", "validation", "test"):
        if not (placed["split"] == split).any():
            raise ValueError(f"no usable row is left for split {split!r}")
    missing = {
        split: [name for label, name in enumerate(classes) if label not in set(labels)]
        for split, labels in placed.groupby("split")["label"]
    }
    if missing["train"]:
        raise ValueError(f"no training row is left of class {', '.join(missing['train'])}")
    if missing["test"]:
        print(f"WARNING: no test row is of class {', '.join(missing['test'])}: nothing will be known of it", flush=True)


def _test_rows_in_train(placed: pd.DataFrame) -> dict[str, Any]:
    """How many test rows have the image of a row that is trained or validated on, and the first of their ids."""
    test = placed[placed["source"] == "test"]
    ids = sorted(test.loc[test["digest"].isin(placed.loc[placed["source"] == "train", "digest"]), "id"].tolist())
    shown = ids[:_IDS_SHOWN]
    if ids:
        print(f"WARNING: {len(ids)} test rows also stand in train, which flatters the metrics: ids {shown}", flush=True)
    return {"count": len(ids), "ids": shown}


def _number_parts(placed: pd.DataFrame, image_shape: tuple[int, int, int]) -> pd.DataFrame:
    """With a column `part`: one number for every (split, index) over all splits."""
    placed["part"] = -1
    first = 0
    for split in ("train", "validation", "test"):
        here = placed["split"] == split
        count = images.num_parts(int(here.sum()), image_shape)
        starts = [start for start, _ in images.part_bounds(int(here.sum()), count)]
        placed.loc[here, "part"] = first + np.searchsorted(starts, placed.loc[here, "position"], side="right") - 1
        first += count
    return placed


def _write(
    spec: PreprocessSpec, raw: Manifest, placed: pd.DataFrame, columns: pa.Schema, image_shape: tuple[int, int, int]
) -> list[dict[str, Any]]:
    """Send every row to its part and write the parts; one row for each, in order: file (JSON), sums of pixels."""
    firsts = placed.groupby("part")["split"].first()
    number_in_split = firsts.groupby(firsts).cumcount()
    targets = {int(part): (str(firsts[part]), int(number_in_split[part])) for part in firsts.index}
    source: Dataset | None = None
    for split in _SPLITS:
        lookup = ray.put(_targets(placed[placed["source"] == split], sum(file.rows or 0 for file in raw.split(split))))
        sent = parts.read(spec.source, parts.whole(raw.split(split)), numbered=True).map_batches(
            _send, batch_format="pyarrow", batch_size=None, fn_kwargs={"lookup": [lookup]}
        )
        source = sent if source is None else source.union(sent)
    assert source is not None
    written = source.groupby("part", num_partitions=len(targets)).map_groups(
        _write_part,
        batch_format="pyarrow",
        fn_kwargs={
            "uri": str(spec.target),
            "targets": targets,
            "schema": columns.serialize().to_pybytes(),
            "image_shape": image_shape,
        },
    )
    rows: list[dict[str, Any]] = []
    for row in written.iter_rows():
        rows.append(row)
        driver.progress("parts written", len(rows), len(targets), fraction=0.5 + len(rows) / len(targets) / 2)
    rows.sort(key=lambda row: row["part"])
    assert [row["part"] for row in rows] == sorted(targets), "a part was lost on the way"
    return rows


def _targets(placed: pd.DataFrame, num_rows: int) -> np.ndarray:
    """Part and position of each raw row, (num_rows, 2), int64; -1 for rows that are left out."""
    targets = np.full((num_rows, 2), -1, dtype=np.int64)
    targets[placed["row"].to_numpy()] = placed[["part", "position"]].to_numpy()
    return targets


def _send(table: pa.Table, *, lookup: list[ray.ObjectRef]) -> pa.Table:
    """The usable rows of `table`, each with its part and its position there."""
    targets = ray.get(lookup[0])[table["row"].to_numpy()]
    keep = np.flatnonzero(targets[:, 0] >= 0)
    sent = table.drop_columns("row").take(keep).replace_schema_metadata(None)
    part, position = targets[keep].T
    return sent.append_column("part", pa.array(part)).append_column("position", pa.array(position))


def _write_part(
    group: pa.Table,
    *,
    uri: str,
    targets: dict[int, tuple[str, int]],
    schema: bytes,
    image_shape: tuple[int, int, int],
) -> pa.Table:
    columns = pa.ipc.read_schema(pa.py_buffer(schema))
    part = int(group["part"][0].as_py())
    table = group.sort_by("position").select(columns.names).cast(columns).replace_schema_metadata(columns.metadata)
    split, index = targets[part]
    file = tables.write_part(DatasetURI(uri), table.combine_chunks(), split=split, index=index)
    pixels, _ = images.to_arrays(table, image_shape)
    values = pixels.reshape(-1, pixels.shape[-1]).astype(np.uint64)
    return pa.table(
        {
            "part": [part],
            "file": [file.model_dump_json()],
            "sum": [values.sum(0).tolist()],
            "sum_of_squares": [(values**2).sum(0).tolist()],
        }
    )


def _statistics(
    written: list[dict[str, Any]],
    placed: pd.DataFrame,
    quarantined: pd.DataFrame,
    classes: tuple[str, ...],
    image_shape: tuple[int, int, int],
) -> dict[str, Any]:
    """Class counts of every split; mean and deviation per channel of the training rows alone, from exact sums."""
    train = [row for row in written if json.loads(row["file"])["split"] == "train"]
    pixels = int((placed["split"] == "train").sum()) * image_shape[0] * image_shape[1]
    sums = np.sum([row["sum"] for row in train], axis=0, dtype=np.uint64)
    squares = np.sum([row["sum_of_squares"] for row in train], axis=0, dtype=np.uint64)
    mean = sums / pixels
    std = np.sqrt(np.maximum(squares / pixels - mean**2, 0))
    if not (std > 0).all():
        raise ValueError("all training pixels of a channel are equal: there is nothing to learn from")
    counts = placed.groupby(["split", "label"]).size()
    return {
        "class_counts": {
            split: {name: int(counts.get((split, label), 0)) for label, name in enumerate(classes)}
            for split in ("train", "validation", "test")
        },
        "mean": mean.tolist(),
        "std": std.tolist(),
        "quarantined": dict(Counter(quarantined["reason"])),
    }


if __name__ == "__main__":
    driver.main("preprocess", PreprocessSpec)
