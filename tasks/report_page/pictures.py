"""Pictures of a report, read from the parts of its datasets: test rows, training images, rows left out, copies."""

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from storage import manifest, tables
from storage.kinds import EMBEDDINGS, PREPARED, DatasetURI, PredictionsURI
from storage.manifest import JSON, Manifest
from storage.statistics import PAIR_KINDS
from tasks.images import row_tables
from tasks.jobs.preprocess import checks
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


def of_mistakes(predictions: PredictionsURI, *, worst: Sequence[int]) -> JSON:
    """Return the field `mistakes` of a report; `worst` are the ids of wrong rows, the worst first."""
    predicted = manifest.load(predictions)
    rows = answers.read_rows(predictions, predicted).set_index("id", drop=False).loc[list(worst[:_MISTAKES])]
    dataset = DatasetURI(predicted.parent("dataset", of=predictions))
    image_of = dict(row_tables.read_images(dataset, "test", rows["id"].tolist()))
    described = rows.assign(name=answers.names_of(rows)).to_dict("records")
    return {"mistakes": tuple({**row, "image": image_of[row["id"]]} for row in described)}


def of_data(uri: DatasetURI, embedded: Manifest | None) -> JSON:
    """Return the fields `class_samples`, `left_out` and `near_duplicates` of a report on a prepared dataset."""
    prepared = manifest.load(uri)
    raw_uri = DatasetURI(prepared.parent("raw", of=uri))
    raw = manifest.load(raw_uri)
    return {
        "class_samples": _of_classes(uri, prepared),
        "left_out": tuple(_of_rows_left_out(uri, prepared, raw_uri, raw)),
        "near_duplicates": tuple(_of_near_duplicates(embedded, raw_uri)),
    }


def _of_classes(uri: DatasetURI, prepared: Manifest) -> Mapping[str, Sequence[np.ndarray]]:
    """Read some training images of each class, the first in the shuffled order; stops when all are there."""
    classes, num_rows = images.classes_of(prepared.columns["metadata"]), prepared.statistics_of(PREPARED).class_counts
    labels = np.linspace(0, len(classes) - 1, min(len(classes), _CLASS_IMAGES)).round().astype(int).tolist()
    of_each = min(_MOST_OF_A_CLASS, max(1, _CLASS_IMAGES // len(classes)))
    ids_of: dict[int, list[int]] = {label: [] for label in labels}
    for part in prepared.split("train"):
        rows = tables.read_part(uri, part, columns=["id", "label"]).to_pandas()
        for label, ids in ids_of.items():
            ids += rows.loc[rows["label"] == label, "id"].head(of_each - len(ids)).tolist()
        if all(len(ids) == min(of_each, num_rows["train"][classes[label]]) for label, ids in ids_of.items()):
            break
    image_of = dict(row_tables.read_images(uri, "train", [id_ for ids in ids_of.values() for id_ in ids]))
    return {classes[label]: [image_of[id_] for id_ in ids] for label, ids in ids_of.items()}


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


def _of_near_duplicates(embedded: Manifest | None, raw_uri: DatasetURI) -> list[JSON]:
    """Return the worst pairs of each kind, with the images of both."""
    recorded = embedded.statistics_of(EMBEDDINGS).near_duplicates if embedded else None
    if recorded is None:
        return []
    pairs = [(kind, pair) for kind in PAIR_KINDS for pair in recorded[kind].worst[:_PAIRS]]
    keys = [tuple((row.source, row.row) for row in (pair.first, pair.second)) for _, pair in pairs]
    pixels = of_raw_rows(raw_uri, [key for both in keys for key in both])
    return [
        {"kind": kind, "rows": pair, "images": (pixels[first], pixels[second])}
        for (kind, pair), (first, second) in zip(pairs, keys, strict=True)
    ]


def of_raw_rows(uri: DatasetURI, rows: Collection[tuple[str, int]]) -> dict[tuple[str, int], np.ndarray]:
    """Read the images of rows of a raw dataset, by split and id, which is the number of the row."""
    return {
        (split, id_): image
        for split in checks.SPLITS
        for id_, image in row_tables.read_images(uri, split, [row for source, row in rows if source == split])
    }
