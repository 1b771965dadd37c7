"""Job: from a raw dataset to a prepared one. Checks every row, splits, shuffles globally, measures."""

import json
import time
from collections import Counter
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from storage import files, manifest, tables
from storage.manifest import File, Manifest
from storage.uri import DatasetURI
from tasks.jobs import checks, driver
from tasks.jobs.engine import Engine
from tasks.jobs.spec import PreprocessSpec
from tasks.learning import images

SPLITS = ("train", "validation", "test")
"""Of a prepared dataset."""
_FILES_SHOWN = 20
"""How many files with unusable rows the manifest's statistics name; the split `quarantine` names all."""
_SUMMED_AT_ONCE = 2**18
"""Pixels of which 32-bit copies are held."""


def run(spec: PreprocessSpec, engine: Engine) -> None:
    """Commit the prepared dataset, whatever the cluster's size and order of execution: the same rows, the same bytes.

    Rows that cannot be used are left out, counted by reason and listed in the split `quarantine`. Raises `ValueError`
    when the schema is wrong, too many rows are unusable or a split or class is empty.
    """
    started = time.monotonic()
    raw = manifest.load(spec.source)
    columns = checks.check_schema(raw)
    files.check_space(spec.target, needed=sum(file.size for file in raw.files))
    shape, classes = images.shape_of(raw.columns["metadata"]), images.classes_of(raw.columns["metadata"])
    checked = checks.check_rows(spec.source, raw, columns, num_classes=len(classes), engine=engine)
    quarantined = checks.check_share(checked, limit=spec.parameters["max_quarantined"])
    quarantined = checks.with_files(quarantined, spec.source, raw)
    in_train = checks.test_rows_in_train(checked)
    placed = place(checked, seed=spec.parameters["seed"], validation_fraction=spec.parameters["validation_fraction"])
    del checked  # a table with a row for each raw row is what most of this process's memory goes into
    checks.check_complete(placed, classes)
    placed = _number_parts(placed, shape)
    written = _write(spec, raw, placed, columns, shape, engine)
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
    """Where each usable row goes, decided by seed and ids alone: source, row, id and label, with split and position.

    Of every class the same share of training rows becomes validation, at least one; training and validation rows are in
    a random order over the whole split, test rows in the order of their ids.
    """
    good = checked.loc[checked["reason"] == "", ["source", "row", "id", "label"]]
    key = random_keys(good["id"].to_numpy(), seed=seed)
    train = good.assign(key=key)[good["source"] == "train"].sort_values(["key", "id"]).drop(columns="key")
    rank_in_class = train.groupby("label").cumcount()
    class_size = train.groupby("label")["id"].transform("size")
    in_validation = rank_in_class < np.maximum(1, np.rint(class_size * validation_fraction))
    test = good[good["source"] == "test"].sort_values("id")
    number = np.concatenate([in_validation.to_numpy(), np.full(len(test), SPLITS.index("test"))])
    placed = pd.concat([train, test], ignore_index=True)
    placed["split"] = pd.Categorical.from_codes(number.astype(np.int8), categories=pd.Index(SPLITS))
    placed["position"] = placed.groupby("split").cumcount()
    return placed


def random_keys(ids: np.ndarray, *, seed: int) -> np.ndarray:
    """One uint64 per id, as if drawn at random, the same on every machine (SplitMix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = ids.astype(np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64) + np.uint64(0x9E3779B97F4A7C15)
        for _ in range(2):
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
    return z


def _number_parts(placed: pd.DataFrame, image_shape: tuple[int, int, int]) -> pd.DataFrame:
    """With a column `part`: one number for every (split, index) over all splits."""
    placed["part"] = -1
    first = 0
    for split in SPLITS:
        here = placed["split"] == split
        count = images.num_parts(int(here.sum()), image_shape)
        starts = [start for start, _ in images.part_bounds(int(here.sum()), count)]
        placed.loc[here, "part"] = first + np.searchsorted(starts, placed.loc[here, "position"], side="right") - 1
        first += count
    return placed


def _write(
    spec: PreprocessSpec,
    raw: Manifest,
    placed: pd.DataFrame,
    columns: pa.Schema,
    image_shape: tuple[int, int, int],
    engine: Engine,
) -> list[dict[str, Any]]:
    """Send every row to its part and write the parts; one row for each, in order: file (JSON), sums of pixels."""
    firsts = placed.groupby("part")["split"].first()
    number_in_split = firsts.groupby(firsts).cumcount()
    targets = {int(part): (str(firsts[part]), int(number_in_split[part])) for part in firsts.index}
    routes = [
        (
            listed,
            _targets(
                placed.loc[placed["source"] == split, ["row", "part", "position"]],
                sum(file.rows or 0 for file in listed),
            ),
        )
        for split in checks.SPLITS
        if (listed := raw.split(split))
    ]
    rows: list[dict[str, Any]] = []
    for row in engine.regroup(
        spec.source,
        routes,
        _write_part,
        uri=str(spec.target),
        targets=targets,
        schema=columns.serialize().to_pybytes(),
        image_shape=image_shape,
    ):
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
    sums, squares = exact_sums(pixels)
    return pa.table(
        {
            "part": [part],
            "file": [file.model_dump_json()],
            "sum": [sums.tolist()],
            "sum_of_squares": [squares.tolist()],
        }
    )


def exact_sums(pixels_NHWC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of the pixels of each channel and of their squares, uint64 (C,), exact; takes a few MiB however many they are."""
    channels = pixels_NHWC.shape[-1]
    sums, squares = np.zeros((2, channels), np.uint64)
    values_NC = pixels_NHWC.reshape(-1, channels)
    for first in range(0, len(values_NC), _SUMMED_AT_ONCE):
        few = values_NC[first : first + _SUMMED_AT_ONCE].astype(np.uint32)
        sums += few.sum(0, dtype=np.uint64)
        squares += (few * few).sum(0, dtype=np.uint64)
    return sums, squares


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
            split: {name: int(counts.get((split, label), 0)) for label, name in enumerate(classes)} for split in SPLITS
        },
        "mean": mean.tolist(),
        "std": std.tolist(),
        "quarantined": dict(Counter(quarantined["reason"])),
        **({"quarantined_files": _named(quarantined)} if "path" in quarantined else {}),
    }


def _named(quarantined: pd.DataFrame) -> list[str]:
    """The first files that rows were left out of, and why."""
    shown = quarantined.drop_duplicates("path").head(_FILES_SHOWN)
    reasons = shown["problem"].where(shown["problem"] != "", shown["reason"])
    return [f"{path}: {reason}" for path, reason in zip(shown["path"].tolist(), reasons.tolist(), strict=True)]


if __name__ == "__main__":
    driver.main("preprocess", PreprocessSpec)
