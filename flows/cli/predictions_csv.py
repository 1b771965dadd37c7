"""Predictions as a CSV file, one line per row, for people and spreadsheets."""

import contextlib
import csv
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from storage import manifest, tables
from storage.uri import DatasetURI, PredictionsURI
from tasks.jobs import row_origins
from tasks.learning import images
from tasks.promotion.correct_rows import COLUMN


def write_csv(uri: PredictionsURI, path: Path) -> None:
    """Write the predictions at `uri` to `path`, replacing an existing file only when the new one is complete.

    Columns: `file` and `row` (of Parquet), or the `id` of downloaded data; `split`, if there are several; `label`,
    where known, and `class`, by name; `probability` of that class; and `reason`, if there is no class.
    """
    made = manifest.load(uri)
    dataset = DatasetURI(made.parent("dataset", of=uri))
    sources = row_origins.table_of(dataset)
    labels = images.classes_of(manifest.load(dataset).columns["metadata"])
    reasons = {} if sources is None else dict(zip(sources["path"], sources["problem"], strict=True))
    has_rows = any(name.lower().endswith(".parquet") for name in reasons)
    place = ["id"] if sources is None else ["file", "row"] if has_rows else ["file"]
    parts, minimum = [part for part in made.files if part.rows], made.parameters.get("min_confidence")
    split = ["split"] * (len({part.split for part in parts}) > 1)
    with _replaced(path) as file:
        writer = csv.DictWriter(
            file, [*place, *split, "label", "class", "probability", "reason"], extrasaction="ignore"
        )
        writer.writeheader()
        for part in parts:
            for row in _rows(tables.read_part(uri, part), labels):
                reason = "" if row["class"] else reasons.get(row.get("file", "")) or "no image"
                reason = f"probability below {minimum:g}" if row["probability"] and not row["class"] else reason
                writer.writerow(row | {"split": part.split, "reason": reason})


def _rows(table: pa.Table, labels: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yield the rows of one part with the names of label and predicted class; empty where there is none."""
    classes = [name.removeprefix(COLUMN) for name in table.column_names if name.startswith(COLUMN)]
    for row in table.select([name for name in table.column_names if not name.startswith(COLUMN)]).to_pylist():
        label, prediction = row.get("label"), row["prediction"]
        yield row | {
            "label": "" if label is None else labels[label],
            "class": "" if prediction is None else classes[prediction],
            "probability": "" if row["probability"] is None else f"{row['probability']:.6f}",
        }


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace `path` by a CSV table of `rows`, in one step."""
    with _replaced(path) as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[TextIO]:
    """Open a temporary file beside `path`; rename it to `path` if the block succeeds, else remove it."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with open(handle, "w", newline="", encoding="utf-8") as file:
            yield file
        os.chmod(name, 0o644)
        os.replace(name, path)
    finally:
        Path(name).unlink(missing_ok=True)
