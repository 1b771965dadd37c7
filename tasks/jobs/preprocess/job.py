"""The preprocess job: check every row, split, shuffle globally, and measure mean and deviation."""

import dataclasses
import time
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa

from storage import commits, files, manifest, tables
from storage.kinds import RAW, DatasetURI
from storage.manifest import File, Manifest
from storage.statistics import PreparedStatistics, SplitRule
from tasks.images import row_tables
from tasks.jobs import dataset_parts, events
from tasks.jobs.local_data import LocalData
from tasks.jobs.preprocess import checks, data_problems, groups
from tasks.jobs.spec import JobSpec
from tasks.learning import images
from tasks.stages import Preprocess

SPLITS = ("train", "validation", "test")
"""Splits of a prepared dataset."""
_FILES_SHOWN = 20
"""Most files with unusable rows in the manifest's statistics; the split `quarantine` lists all."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A part that has been written, with what is measured of its pixels."""

    number: int
    """Number over all splits."""
    file: File
    sums: np.ndarray
    """Of each channel's pixels, uint64 (C,)."""
    sums_of_squares: np.ndarray
    digests: bytes
    """Of its images, for `row_tables.write_digests`."""


def run(spec: JobSpec[Preprocess], data: LocalData) -> None:
    """Commit the prepared dataset: the same rows and bytes for any size of cluster and order of execution.

    Unusable rows are left out, counted by reason and listed in the split `quarantine`. Raises `ValueError` if too many
    rows are unusable, or a split or class is empty.
    """
    started, stage = time.monotonic(), spec.stage
    raw = manifest.load(stage.raw)
    classes, shape = images.classes_of(raw.columns["metadata"]), images.shape_of(raw.columns["metadata"])
    store = images.store_of(raw.columns["metadata"])
    columns = images.schema(shape, classes, store=store)
    files.check_space(stage.target, needed=sum(file.size for file in raw.files))
    checked = checks.check_rows(stage.raw, raw, num_classes=len(classes), data=data)
    if "listing" in raw.parameters:  # the user's own images; a published test split stays as it was published
        checks.leave_out_copies(checked)
    quarantined = checks.unusable(checked, stage.raw, raw, limit=stage.split.max_quarantined)
    in_train = checks.test_rows_in_train(checked)
    in_two_classes = checks.images_in_two_classes(checked, stage.raw, raw)
    checked = groups.keep_together(checked, stage)
    split = {name: getattr(stage.split, name) for name in ("split_seed", "validation_fraction")}
    placed = assign_splits(checked, **split)
    del checked  # one row for each raw row: the largest object in this process
    checks.check_complete(placed, classes)
    parts = _shuffle_and_write(stage, raw, placed, columns, data)
    entries = [part.file for part in parts]
    in_order = placed.sort_values("split", kind="stable")  # as the parts are
    entries.append(row_tables.write_digests(stage.target, in_order, b"".join(part.digests for part in parts)))
    if len(quarantined):
        table = pa.Table.from_pandas(quarantined, preserve_index=False)
        entries.append(tables.write_part(stage.target, table, split="quarantine", index=0))
    mean, std = _mean_and_std(parts, shape)
    prepared = commits.commit(
        stage.target,
        kind="prepared",
        parents=stage.parents | {"raw": raw.as_parent(stage.raw)},
        parameters=stage.values,
        listed=entries,
        schema=tables.describe(columns),
        statistics=PreparedStatistics(
            class_counts=_class_counts(placed, classes),
            mean=mean,
            std=std,
            quarantined=dict(Counter(quarantined["reason"])),
            quarantined_files=tuple(checks.name_quarantined_files(quarantined)[:_FILES_SHOWN]),
            split=SplitRule(**split, group=stage.split.group, store=store),
            test_rows_in_train=in_train,
            images_in_two_classes=in_two_classes,
            notice=raw.statistics_of(RAW).notice,
            seconds=time.monotonic() - started,
        ),
    )
    data_problems.warn(data_problems.find_data_problems(raw, prepared, None))


def assign_splits(checked: pd.DataFrame, *, split_seed: int, validation_fraction: float) -> pd.DataFrame:
    """Assign each usable row to a split and position, by the seed and its content alone, not by the input's order.

    A training row becomes validation if the key of its image, drawn with `split_seed`, is below `validation_fraction`.
    So it keeps its split when other rows are added or removed, and equal images are in one split. `_in_validation`
    treats classes that are too small for this rule. Training and validation rows are shuffled over the whole split;
    test rows are in the order of their ids.

    The result has the columns source, row, id, label, split and position (in the split).
    """
    good = checked.loc[checked["reason"] == "", ["source", "row", "id", "label", "digest"]]
    is_test = good["source"] == "test"
    train = _in_order(good[~is_test])
    key = random_keys(train["digest"].to_numpy(np.int64), seed=split_seed)
    copy = train.groupby(key).cumcount().to_numpy(np.uint64)  # keeps equal images from lying side by side
    order = np.lexsort((train["id"].to_numpy(np.int64), random_keys(key + copy, seed=split_seed)))
    in_validation = _in_validation(key, train["label"].to_numpy(np.int64), fraction=validation_fraction)[order]
    test = _in_order(good[is_test])
    number = np.concatenate([in_validation, np.full(len(test), SPLITS.index("test"))])
    placed = pd.concat([train.iloc[order], test], ignore_index=True).drop(columns="digest")
    placed["split"] = pd.Categorical.from_codes(number.astype(np.int8), categories=pd.Index(SPLITS))
    placed["position"] = placed.groupby("split").cumcount()
    return placed


def _in_order(rows: pd.DataFrame) -> pd.DataFrame:
    """Sort rows by id, those of train before those of test."""
    return rows.iloc[np.lexsort((rows["id"].to_numpy(np.int64), (rows["source"] == "test").to_numpy()))]


def _in_validation(key: np.ndarray, label: np.ndarray, *, fraction: float) -> np.ndarray:
    """Choose the training rows that become validation: those whose key, divided by 2**64, is below `fraction`.

    Every class with two or more images must be in both splits: if none is below, the image with the lowest key becomes
    validation; if all are, the one with the highest key stays. Which one that is may change with other rows.
    """
    rows = pd.DataFrame({"label": label, "key": key, "chosen": key < np.uint64(int(fraction * 2**64))})
    classes = rows.groupby("label").agg(lowest=("key", "min"), highest=("key", "max"), some=("chosen", "any"))
    lacking = ~classes["some"] & (classes["lowest"] < classes["highest"])
    rows["chosen"] |= rows["key"].isin(classes.loc[lacking, "lowest"])
    used_up = rows.groupby("label")["chosen"].all()
    rows["chosen"] &= ~rows["key"].isin(classes.loc[used_up, "highest"])
    return rows["chosen"].to_numpy()


def random_keys(numbers: np.ndarray, *, seed: int) -> np.ndarray:
    """Return a pseudo-random uint64 per number, equal on every machine (SplitMix64, Steele et al. 2014)."""
    with np.errstate(over="ignore"):
        z = numbers.astype(np.uint64) + np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64) + np.uint64(0x9E3779B97F4A7C15)
        for _ in range(2):
            z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
            z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
            z = z ^ (z >> np.uint64(31))
    return z


def _assign_parts(placed: pd.DataFrame, raw: Manifest) -> list[tuple[str, int]]:
    """Add a column `part` to the rows; return the split of each part, and its number in the split."""
    shape = images.shape_of(raw.columns["metadata"])
    row_bytes = sum(file.size for file in raw.files) // raw.rows if dataset_parts.is_encoded(raw) else 0
    placed["part"] = -1
    parts: list[tuple[str, int]] = []
    for split in SPLITS:
        position = placed.loc[placed["split"] == split, "position"]
        count = images.num_parts(len(position), shape, encoded_bytes=len(position) * row_bytes)
        starts = [start for start, _ in images.part_bounds(len(position), count)]
        placed.loc[position.index, "part"] = len(parts) - 1 + np.searchsorted(starts, position, side="right")
        parts += [(split, number) for number in range(count)]
    return parts


def _shuffle_and_write(
    stage: Preprocess, raw: Manifest, placed: pd.DataFrame, columns: pa.Schema, data: LocalData
) -> list[Part]:
    """Send every row to its part and write the parts; return these in order."""
    targets = _assign_parts(placed, raw)
    first, *others = [
        data.read_parts(stage.raw, raw.split(split)).map_batches(
            _route, batch_format="pyarrow", fn_kwargs={"routes": _routes(placed, split, rows=raw.num_rows(split))}
        )
        for split in checks.SPLITS
    ]
    shape = images.shape_of(raw.columns["metadata"])
    written = (
        first.union(*others)
        .groupby("part", num_partitions=len(targets))
        .map_groups(
            _write_part,
            batch_format="pyarrow",
            fn_kwargs={"uri": stage.target, "targets": targets, "columns": columns, "image_shape": shape},
        )
    )
    parts: list[Part] = []
    for row in written.iter_rows():
        parts.append(row["item"])
        events.progress("parts written", len(parts), len(targets), fraction=0.5 + len(parts) / len(targets) / 2)
    parts.sort(key=lambda part: part.number)
    assert [part.number for part in parts] == list(range(len(targets))), "a part was lost on the way"
    return parts


def _routes(placed: pd.DataFrame, source: str, *, rows: int) -> np.ndarray:
    """Return the part and position of each row of a raw split, (rows, 2), int64; -1 for a row that is left out."""
    chosen = placed.loc[placed["source"] == source, ["row", "part", "position"]]
    routes = np.full((rows, 2), -1, dtype=np.int64)
    routes[chosen["row"].to_numpy()] = chosen[["part", "position"]].to_numpy()
    return routes


def _route(table: pa.Table, *, routes: np.ndarray) -> pa.Table:
    """Drop rows that are left out; replace column `row` by the columns `part` and `position`."""
    target = routes[table["row"].to_numpy()]
    keep = np.flatnonzero(target[:, 0] >= 0)
    sent = table.drop_columns("row").take(keep).replace_schema_metadata(None)
    part, position = target[keep].T
    return sent.append_column("part", pa.array(part)).append_column("position", pa.array(position))


def _write_part(
    group: pa.Table,
    *,
    uri: DatasetURI,
    targets: Sequence[tuple[str, int]],
    columns: pa.Schema,
    image_shape: tuple[int, int, int],
) -> dict[str, list[Part]]:
    """Write the rows of one part, which come in any order."""
    number = int(group["part"][0].as_py())
    table = group.sort_by("position").select(columns.names).cast(columns).replace_schema_metadata(columns.metadata)
    split, index = targets[number]
    file = tables.write_part(uri, table.combine_chunks(), split=split, index=index)
    pixels, _ = images.to_arrays(table, image_shape)
    sums, squares = exact_sums(pixels)
    digests = row_tables.digests_of(pixels)
    return {"item": [Part(number=number, file=file, sums=sums, sums_of_squares=squares, digests=digests)]}


def exact_sums(pixels_NHWC: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return exact sums of each channel's pixels and of their squares, uint64 (C,), without a copy of the pixels."""
    values_NC = pixels_NHWC.reshape(-1, pixels_NHWC.shape[-1])
    return values_NC.sum(0, dtype=np.uint64), np.einsum("nc,nc->c", values_NC, values_NC, dtype=np.uint64)


def _mean_and_std(parts: Sequence[Part], shape: tuple[int, int, int]) -> Iterator[tuple[float, ...]]:
    """Return mean and deviation of each channel of the training rows; raise `ValueError` if a channel is constant."""
    height, width, _ = shape
    train = [part for part in parts if part.file.split == "train"]
    pixels = sum(part.file.rows or 0 for part in train) * height * width
    sums = np.sum([part.sums for part in train], axis=0, dtype=np.uint64)
    squares = np.sum([part.sums_of_squares for part in train], axis=0, dtype=np.uint64)
    mean = sums / pixels
    std = np.sqrt(np.maximum(squares / pixels - mean**2, 0))
    if not (std > 0).all():
        raise ValueError("all training pixels of a channel are equal, so there is nothing to learn; check the images")
    return (tuple(np.atleast_1d(values).tolist()) for values in (mean, std))


def _class_counts(placed: pd.DataFrame, classes: Sequence[str]) -> dict[str, dict[str, int]]:
    counts = placed.groupby(["split", "label"]).size()
    return {split: {name: int(counts.get((split, label), 0)) for label, name in enumerate(classes)} for split in SPLITS}
