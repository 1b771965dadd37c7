"""Test rows that a model gets wrong, their names, and copies of their images for a person to look at."""

import contextlib
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import pandas as pd
from PIL import Image

from storage import files
from storage.kinds import RAW, DatasetURI, PredictionsURI
from storage.manifest import JSON, Manifest
from storage.uri import URI
from tasks.images import row_tables
from tasks.promotion import answers

_LONGEST = 200
"""Bytes of a file name without its suffix; it may have 255 in all."""


def mistakes(
    uri: PredictionsURI, predicted: Manifest, *, label: str | None = None, prediction: str | None = None
) -> pd.DataFrame:
    """Return the rows of `answers.read_rows` with a wrong prediction, the most confident first.

    Only those of class `label` and those predicted as `prediction`; raises `ValueError` for an unknown class.
    """
    try:
        labels = answers.label_names(DatasetURI(predicted.parent("dataset", of=uri)))
        rows = answers.read_rows(uri, predicted)
    except FileNotFoundError as error:
        raise ValueError(f"{uri}: its test rows no longer exist: {error}; run its pipeline again") from None
    names = sorted({*labels, *answers.known_classes(uri, predicted)})
    chosen = rows["label"] != rows["prediction"]
    for option, column, name in (("--class", "label", label), ("--as", "prediction", prediction)):
        if name is not None and name not in names:
            raise ValueError(f"{option}: no class is called {name!r}; use one such as {', '.join(names[:10])}")
        chosen &= (rows[column] == name) | (name is None)
    return rows[chosen].sort_values(["probability", "id"], ascending=[False, True], ignore_index=True)


def write_copies(folder: Path, dataset: DatasetURI, rows: Iterable[JSON]) -> None:
    """Write the images of rows of a dataset: `00007 dog as cat, photo 3.jpg` has rank, `title` and file of the row.

    A row has `split` and `id`; and `file`, unless it was downloaded, with `row` if that is Parquet. The user's own file
    is copied if it is still what was ingested; else the stored pixels are written as PNG.
    """
    folder.mkdir(parents=True, exist_ok=True)
    names: defaultdict[str, dict[int, str]] = defaultdict(dict)
    for rank, row in enumerate(rows, start=1):
        source = PurePosixPath(row["file"]).stem if "file" in row else f"id {row['id']}"
        source += f" row {row['row']}" if row.get("row") is not None else ""
        name = re.sub(r"[^\w .,()=-]", "_", f"{rank:05d} {row['title']}, {source}")
        names[row["split"]][row["id"]] = name.encode()[:_LONGEST].decode(errors="ignore")
    for split, left in names.items():
        for id_, content, suffix in _originals(dataset, list(left), split=split):
            (folder / f"{left.pop(id_)}{suffix}").write_bytes(content)
        for id_, image in row_tables.read_images(dataset, split, list(left)):
            Image.fromarray(image.squeeze()).save(folder / f"{left[id_]}.png")


def _originals(dataset: DatasetURI, ids: list[int], *, split: str) -> Iterator[tuple[int, bytes, str]]:
    """Yield id, content and suffix of each image file of the user's that is still what was ingested."""
    if not (raw := row_tables.raw_of(dataset)) or (sources := row_tables.table(*raw)) is None:
        return
    place = URI(raw[1].statistics_of(RAW).sources[0].url)
    for id_, path, number, sha256 in zip(ids, *row_tables.files_of(sources, split, ids), strict=True):
        with contextlib.suppress(OSError):  # deleted since
            if number is None and hashlib.sha256(content := files.read(place.child(path))).hexdigest() == sha256:
                yield id_, content, Path(path).suffix
