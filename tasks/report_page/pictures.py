"""Pictures of a report, read from the parts of its datasets: test rows, training images, rows left out, copies."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from storage import manifest, tables
from storage.kinds import PREPARED
from storage.manifest import JSON, Manifest
from storage.uri import DatasetURI, PredictionsURI
from tasks.images import row_tables
from tasks.jobs.preprocess import checks, near_duplicates
from tasks.learning import images
from tasks.promotion import answers

_MISTAKES = 16
_CLASS_IMAGES = 96
"""Most training images; of more classes, some spread evenly have one each."""
_MOST_OF_A_CLASS = 6
_LEFT_OUT = 24
"""Most rows left out, as evenly by reason as there are."""
_PAIRS = 8
"""Most near duplicates of each kind."""

RawRow = tuple[str, int]
"""Split of a raw dataset, and the number of the row in it."""


def of_mistakes(predictions: PredictionsURI, *, worst: Sequence[int]) -> JSON:
    """Return the field `mistakes` of a report; `worst` are the ids of wrong rows, the worst first."""
    predicted = manifest.load(predictions)
    rows = answers.read_rows(predictions, predicted).set_index("id", drop=False).loc[list(worst[:_MISTAKES])]
    dataset = DatasetURI(predicted.parent("dataset", of=predictions))
    image_of = dict(row_tables.read_images(dataset, "test", rows["id"].tolist()))
    described = rows.assign(name=answers.names_of(rows)).to_dict("records")
    return {"mistakes": tuple({**row, "image": image_of[row["id"]]} for row in described)}


def of_data(uri: DatasetURI) -> JSON:
    """Return the fields `class_samples`, `left_out` and `near_duplicates` of a report on a prepared dataset."""
    prepared = manifest.load(uri)
    raw_uri = DatasetURI(prepared.parent("raw", of=uri))
    raw = manifest.load(raw_uri)
    return {
        "class_samples": _of_classes(uri, prepared),
        "left_out": tuple(_of_rows_left_out(uri, prepared, raw_uri, raw)),
        "near_duplicates": tuple(_of_near_duplicates(prepared, raw_uri)),
    }


def _of_classes(uri: DatasetURI, prepared: Manifest) -> Mapping[str, Sequence[np.ndarray]]:
    """Read some training images of each class, the first in the shuffled order; stops when all are there."""
    metadata, num_rows = prepared.columns["metadata"], prepared.statistics_of(PREPARED).class_counts["train"]
    classes = images.classes_of(metadata)
    labels = np.linspace(0, len(classes) - 1, min(len(classes), _CLASS_IMAGES)).round().astype(int).tolist()
    of_each = min(_MOST_OF_A_CLASS, max(1, _CLASS_IMAGES // len(classes)))
    missing = {label: min(of_each, num_rows[classes[label]]) for label in labels}
    pictures: dict[int, list[np.ndarray]] = {label: [] for label in labels}
    for part in prepared.split("train"):
        if not any(missing.values()):
            break
        table = tables.read_part(uri, part)
        stored = table["label"].to_numpy()
        rows = [row for label, count in missing.items() for row in np.flatnonzero(stored == label)[:count].tolist()]
        if rows:
            pixels, _ = images.to_arrays(table.take(rows), images.shape_of(metadata))
            for row, image in zip(rows, pixels, strict=True):
                pictures[stored[row]].append(image)
                missing[stored[row]] -= 1
    return {classes[label]: its for label, its in pictures.items()}


def _of_rows_left_out(uri: DatasetURI, prepared: Manifest, raw_uri: DatasetURI, raw: Manifest) -> list[JSON]:
    """Describe some of the rows in quarantine: `class` or None, `place`, `reason`, and `image`, None if unreadable."""
    if not prepared.split("quarantine"):
        return []
    classes = images.classes_of(raw.columns["metadata"])
    rows = tables.read_split(uri, "quarantine").to_pandas()
    rank = rows.groupby("reason").cumcount()
    rows = rows.assign(rank=rank).sort_values(["rank", "reason"], kind="stable").head(_LEFT_OUT)
    rows = rows.sort_values(["reason", "source", "row"]).reset_index(drop=True)
    keys = list(zip(rows["source"], rows["row"].astype(int), strict=True))
    pixels = of_raw_rows(raw_uri, keys)
    places = checks.places(rows, row_tables.table(raw_uri, raw))
    return [
        {
            "class": classes[row["label"]] if 0 <= row["label"] < len(classes) else None,
            "place": place,
            "reason": row.get("problem") or row["reason"],
            "image": pixels.get(key),
        }
        for key, place, row in zip(keys, places, rows.to_dict("records"), strict=True)
    ]


def _of_near_duplicates(prepared: Manifest, raw_uri: DatasetURI) -> list[JSON]:
    """Return the worst pairs of each kind, with the images of both."""
    recorded = prepared.statistics_of(PREPARED).near_duplicates
    if recorded is None:
        return []
    pairs = [(kind, pair) for kind in near_duplicates.KINDS for pair in recorded[kind].worst[:_PAIRS]]
    keys = [tuple((row.source, row.row) for row in (pair.first, pair.second)) for _, pair in pairs]
    pixels = of_raw_rows(raw_uri, [key for both in keys for key in both])
    return [
        {"kind": kind, "rows": pair, "images": (pixels[first], pixels[second])}
        for (kind, pair), (first, second) in zip(pairs, keys, strict=True)
    ]


def of_raw_rows(uri: DatasetURI, rows: Collection[RawRow]) -> dict[RawRow, np.ndarray]:
    """Read the images of rows of a raw dataset, whose number is their id."""
    return {
        (split, id_): image
        for split in checks.SPLITS
        for id_, image in row_tables.read_images(uri, split, [row for source, row in rows if source == split])
    }
