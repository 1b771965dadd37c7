"""Predictions as a CSV file, one line per row, for people and spreadsheets."""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from storage import files, manifest, tables
from storage.kinds import PROBABILITY_PREFIX, DatasetURI, PredictionsURI
from storage.manifest import JSON, File
from storage.uri import URI
from tasks.images import row_tables
from tasks.learning import images
from tasks.promotion import answers

_FORMULA = re.compile(r"(^|[;\t\r\n])(?=\s*[=+\-@\uff1d\uff0b\uff0d\uff20])")
"""Where a formula may begin; in some languages a spreadsheet splits cells at `;` too, and reads wide characters."""


def write_csv(
    uri: PredictionsURI,
    path: Path,
    *,
    min_confidence: float | None = None,
    max_distance: float | None = None,
    has_mark: bool = False,
) -> None:
    """Write the predictions at `uri` to `path`, replacing an existing file only when the new one is complete.

    Columns: `file` and `row` (of Parquet), or the `id` of downloaded data; `split`, if there are several; `label`,
    where known, and `class`, by name; `probability` of that class; `distance`, if the model has it; `reason`, if there
    is no class; the `id` of own images, too; and `sha256`, as in the predictions. A row with a probability below
    `min_confidence`, or a distance above `max_distance`, gets no class.
    """
    predictions = manifest.load(uri)
    dataset = DatasetURI(predictions.parent("dataset", of=uri))
    sources = row_tables.table_of(dataset)
    labels = images.classes_of(manifest.load(dataset).columns["metadata"])
    reasons = {} if sources is None else dict(zip(sources["path"], sources["problem"], strict=True))
    has_rows = any(name.lower().endswith(".parquet") for name in reasons)
    place = ["id"] if sources is None else ["file", "row"] if has_rows else ["file"]
    parts = [part for part in predictions.files if part.rows]
    split = ["split"] * (len({part.split for part in parts}) > 1)
    limits = np.array([min_confidence or 0, np.inf if max_distance is None else max_distance], np.float32)
    rows = (row for part in parts for row in _rows(uri, part, labels, reasons, limits))
    origin = ["sha256"] if sources is None else ["id", "sha256"]
    distance = ["distance"] * ("distance" in predictions.columns["columns"])
    columns = [*place, *split, "label", "class", "probability", *distance, "reason", *origin]
    write_rows(path, columns, rows, has_mark=has_mark)


def _rows(
    uri: PredictionsURI, part: File, labels: Sequence[str], reasons: Mapping[str, str], limits: np.ndarray
) -> Iterator[JSON]:
    """Yield the rows of one part with the names of label and predicted class, or the reason why there is none.

    `limits` are the least probability and the largest distance, in the precision of the columns: 0.9 is not below 0.9.
    """
    table = tables.read_part(uri, part)
    classes, (minimum, maximum) = answers.classes_of(table.column_names), limits
    for row in table.drop_columns([f"{PROBABILITY_PREFIX}{name}" for name in classes]).to_pylist():
        label, prediction, probability = row.get("label"), row["prediction"], row["probability"]
        distance = row.get("distance")
        reason = ""
        if prediction is None:
            reason = reasons.get(row.get("file", "")) or "no image"
        elif distance is not None and distance > maximum:
            prediction, reason = None, f"distance above {maximum:g}"
        elif probability < minimum:
            prediction, reason = None, f"probability below {minimum:g}"
        yield row | {
            "split": part.split,
            "label": "" if label is None else labels[label],
            "class": "" if prediction is None else classes[prediction],
            "probability": "" if probability is None else f"{probability:.6f}",
            "distance": "" if distance is None else f"{distance:.4f}",
            "reason": reason,
        }


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, object]], *, has_mark: bool) -> None:
    """Replace `path` by a CSV table of these columns of `rows`, in one step; `has_mark`: with that of UTF-8, for Excel.

    A cell that a spreadsheet would take for a formula gets an apostrophe, which makes it text.
    """
    text = "".join(_line([row[name] for name in columns]) for row in ({name: name for name in columns}, *rows))
    files.put(URI(str(path)), text.encode("utf-8-sig" if has_mark else "utf-8"))


def _line(cells: Iterable[object]) -> str:
    line = io.StringIO(newline="")
    csv.writer(line).writerow(_FORMULA.sub(r"\1'", cell) if isinstance(cell, str) else cell for cell in cells)
    return line.getvalue().removesuffix("\r\n") + "\n"  # the writer's CR LF makes it quote a cell with a CR
