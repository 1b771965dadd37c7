"""Predictions as a CSV file, one line per row, for people and spreadsheets."""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from storage import files, manifest, tables
from storage.manifest import File
from storage.uri import URI, DatasetURI, PredictionsURI
from tasks.jobs import row_tables
from tasks.learning import images
from tasks.promotion.correct_rows import COLUMN


def write_csv(uri: PredictionsURI, path: Path) -> None:
    """Write the predictions at `uri` to `path`, replacing an existing file only when the new one is complete.

    Columns: `file` and `row` (of Parquet), or the `id` of downloaded data; `split`, if there are several; `label`,
    where known, and `class`, by name; `probability` of that class; `reason`, if there is no class; the `id` of own
    images, too; and `sha256`, as in the predictions.
    """
    predictions = manifest.load(uri)
    dataset = DatasetURI(predictions.parent("dataset", of=uri))
    sources = row_tables.table_of(dataset)
    labels = images.classes_of(manifest.load(dataset).columns["metadata"])
    reasons = {} if sources is None else dict(zip(sources["path"], sources["problem"], strict=True))
    has_rows = any(name.lower().endswith(".parquet") for name in reasons)
    place = ["id"] if sources is None else ["file", "row"] if has_rows else ["file"]
    parts, minimum = [part for part in predictions.files if part.rows], predictions.parameters.get("min_confidence")
    split = ["split"] * (len({part.split for part in parts}) > 1)
    rows = (row for part in parts for row in _rows(uri, part, labels, reasons, minimum))
    origin = ["sha256"] if sources is None else ["id", "sha256"]
    write_rows(path, [*place, *split, "label", "class", "probability", "reason", *origin], rows)


def _rows(
    uri: PredictionsURI, part: File, labels: Sequence[str], reasons: Mapping[str, str], minimum: float | None
) -> Iterator[dict[str, Any]]:
    """Yield the rows of one part with the names of label and predicted class, or the reason why there is none."""
    table = tables.read_part(uri, part)
    classes = [name.removeprefix(COLUMN) for name in table.column_names if name.startswith(COLUMN)]
    for row in table.select([name for name in table.column_names if not name.startswith(COLUMN)]).to_pylist():
        label, prediction, probability = row.get("label"), row["prediction"], row["probability"]
        reason = ""
        if prediction is None:
            reason = reasons.get(row.get("file", "")) or "no image"
            reason = reason if probability is None else f"probability below {minimum:g}"
        yield row | {
            "split": part.split,
            "label": "" if label is None else labels[label],
            "class": "" if prediction is None else classes[prediction],
            "probability": "" if probability is None else f"{probability:.6f}",
            "reason": reason,
        }


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Replace `path` by a CSV table of these columns of `rows`, in one step."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    files.put(URI(str(path)), text.getvalue().encode())
