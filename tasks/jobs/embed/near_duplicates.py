"""Near duplicates among the images of a dataset: across train and test, across classes, and within a class."""

import numpy as np
import pandas as pd
import pyarrow.compute as pc

from storage import manifest, process
from storage.kinds import DatasetURI
from storage.manifest import File
from storage.statistics import PAIR_KINDS, NamedRow, NearDuplicates, Pair, PairKind
from tasks.images import embedding_rows, row_tables
from tasks.images.embedding_rows import EmbeddedRows
from tasks.jobs import dataset_parts, events
from tasks.jobs.preprocess.job import SPLITS
from tasks.learning import images, near_duplicates

_LISTED = 100
"""Most pairs of each kind to list; all are counted."""
_READERS = 2
"""Parts in memory at a time."""


def find(rows: EmbeddedRows, *, threads: int) -> tuple[np.ndarray, dict[PairKind, NearDuplicates]]:
    """Return near duplicates as row numbers (P, 2); and their number and the most alike of each kind."""
    by_content = pc.sort_indices(rows.digests).to_numpy()  # the order of the rows decides nothing
    directions, small = embedding_rows.directions(rows.vectors[by_content]), _small(rows.dataset)[by_content]
    pairs, distances = near_duplicates.find_pairs(directions, small, threads=threads, progress=events.progress)
    pairs = np.sort(by_content[pairs], axis=1)
    across_splits, across_classes = (
        np.diff(values[pairs])[:, 0] != 0 for values in (rows.splits == "test", rows.labels)
    )
    kinds = np.where(across_splits, 0, np.where(across_classes, 1, 2))
    order = np.lexsort((pairs[:, 1], pairs[:, 0], distances))
    found: dict[PairKind, NearDuplicates] = {}
    for number, kind in enumerate(PAIR_KINDS):
        of_kind = order[kinds[order] == number]
        worst = of_kind[:_LISTED]
        both = zip(distances[worst].tolist(), *(_named(rows, pairs[worst, side]) for side in (0, 1)), strict=True)
        listed = tuple(Pair(distance=distance, first=first, second=second) for distance, first, second in both)
        found[kind] = NearDuplicates(count=len(of_kind), worst=listed)
    return pairs, found


def _small(uri: DatasetURI) -> np.ndarray:
    """Return the small gray picture of each image, in order."""
    dataset = manifest.load(uri)
    shape = images.shape_of(dataset.columns["metadata"])

    def of_part(file: File) -> np.ndarray:
        table = dataset_parts.read_slice(uri, dataset_parts.whole_files([file])[0])
        return near_duplicates.shrink(images.to_arrays(table.filter(table["image"].is_valid()), shape)[0])

    parts = [file for split in SPLITS for file in dataset.split(split)]
    return np.concatenate(list(process.in_threads(of_part, parts, threads=_READERS)))


def _named(rows: EmbeddedRows, numbers: np.ndarray) -> list[NamedRow]:
    table = pd.DataFrame({"split": rows.splits[numbers], "id": rows.ids[numbers], "label": rows.labels[numbers]})
    return [
        NamedRow(
            source=row["split"],
            row=row["id"],
            place=row["file"] if row["row"] is None else f"{row['file']} row {row['row']}",
            class_name=rows.classes[row["label"]],
        )
        for row in row_tables.with_files(table, rows.dataset).to_dict("records")
    ]
