"""Test rows that count for no model: one of the compared models has seen the same image in training."""

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from storage import manifest, tables
from storage.manifest import Damaged
from storage.uri import URI, CheckpointURI, DatasetURI
from tasks.images import row_tables
from tasks.learning import images
from tasks.promotion.answers import Answers


@dataclasses.dataclass(frozen=True, kw_only=True)
class SeenRows:
    """Test rows whose image a compared model was trained or validated on."""

    ids: Sequence[int] = ()
    lost_classes: Sequence[str] = ()
    """Classes of which no other test row is left."""
    note: str = ""
    """What users must know about these rows; begins with a semicolon, or is empty."""


def find(test: Answers | None, models: Mapping[str, CheckpointURI]) -> SeenRows:
    """Find the rows of `test` whose image one of `models`, by its name in a sentence, has seen in training.

    The models whose weights a training began with count too. What no longer exists cannot be checked; the note says so.
    """
    if test is None:  # the predictions no longer exist
        return SeenRows()
    rows = row_tables.read_digests(test.dataset)
    rows = rows.filter(pc.equal(rows["split"], "test")).sort_by("id")
    assert np.array_equal(rows["id"].to_numpy(), test.ids), "the predictions are for other test rows"
    is_seen, by, unknown = np.zeros(len(rows), bool), [], ""
    for name, model in models.items():
        seen, missing = _seen_by(model, rows, test.dataset, splits=("train", "validation"))
        is_seen |= seen
        by += [f"{seen.sum():,} of {name}"] if seen.any() else []
        unknown += f"; whether {name} was trained on test rows could not be checked: {missing}" if missing else ""
    lost = sorted(set(test.labels.tolist()) - set(test.labels[~is_seen].tolist()))
    excluded = f"; {is_seen.sum():,} of {len(rows):,} test rows excluded, as they were training or validation rows: "
    note = excluded + ", ".join(by) if by else ""
    return SeenRows(
        ids=test.ids[is_seen].tolist(), lost_classes=[test.classes[label] for label in lost], note=note + unknown
    )


def find_new_labels(test: Answers, champion: CheckpointURI) -> list[int]:
    """Return the ids of the rows of `test` with a label that the test rows of the champion's own data did not have.

    Images are compared by content. Without these data, or if they are the same, there are none.
    """
    try:
        dataset = DatasetURI(manifest.load(champion).parent("prepared", of=champion))
        if dataset == test.dataset:
            return []
        sides = [_labels_by_digest(each) for each in (dataset, test.dataset)]
    except (KeyError, FileNotFoundError, PermissionError, Damaged, ValueError):
        return []
    old, new = (pd.MultiIndex.from_frame(side[["digest", "label"]]) for side in sides)
    return [int(number) for number in sides[1]["id"][~new.isin(old)]]


def _labels_by_digest(dataset: DatasetURI) -> pd.DataFrame:
    """Return id, digest, and label by name of each test row of `dataset`."""
    rows: pd.DataFrame = tables.read_split(dataset, "test", columns=["id", "label"]).to_pandas()
    names = np.array(images.classes_of(manifest.load(dataset).columns["metadata"]), object)
    digests = row_tables.read_digests(dataset).to_pandas().query("split == 'test'")
    return rows.assign(label=names[rows["label"].to_numpy(int)]).merge(digests, on="id")


def validated_on_seen(model: CheckpointURI) -> str:
    """Say how many validation rows of `model` a model that it began with was trained on; nothing if none was."""
    with contextlib.suppress(FileNotFoundError, PermissionError, Damaged, KeyError):
        trained = manifest.load(model)
        prepared = DatasetURI(trained.parent("prepared", of=model))
        rows = row_tables.read_digests(prepared)
        rows = rows.filter(pc.equal(rows["split"], "validation"))
        seen, _ = _seen_by(trained.parent("initial", of=model), rows, prepared, splits=("train",))
        if seen.any():
            return (
                f"; its best epoch was chosen on {len(rows):,} validation rows, {seen.sum():,} of which were training "
                "rows of the model that it began with"
            )
    return ""


def _seen_by(model: URI, rows: pa.Table, dataset: DatasetURI, *, splits: Sequence[str]) -> tuple[np.ndarray, str]:
    """Return which `rows` of `dataset` were in `splits` of `model`, and why that could not be checked.

    Images of one size are the same if their pixels are, others if their files are.
    """
    is_seen, missing = np.zeros(len(rows), bool), ""
    try:
        for prepared in _datasets(model):
            seen = row_tables.read_digests(prepared)
            seen = seen.filter(pc.is_in(seen["split"], value_set=pa.array(splits)))
            if _shape(prepared) == _shape(dataset):
                is_seen |= pc.is_in(rows["digest"], value_set=seen["digest"]).to_numpy()
            else:
                is_seen |= np.isin(_files(dataset, rows), _files(prepared, seen))
    except KeyError:
        missing = "it does not record its data"
    except (FileNotFoundError, PermissionError, Damaged, ValueError) as error:  # deleted, or in another storage root
        missing = str(error)
    return is_seen, missing


def _shape(dataset: DatasetURI) -> tuple[int, int, int]:
    return images.shape_of(manifest.load(dataset).columns["metadata"])


def _files(dataset: DatasetURI, rows: pa.Table) -> list[str]:
    """Return the SHA-256 of the image file of each of `rows`, which are all of the test split, or none is."""
    if (sources := row_tables.table_of(dataset)) is not None and len(rows):
        _, numbers, digests = row_tables.files_of(sources, rows["split"][0].as_py(), rows["id"].to_pylist())
        if not any(number is not None for number in numbers):
            return digests
    raise ValueError(f"{dataset} has images of another size, and no file for each")


def _datasets(model: URI) -> Iterator[DatasetURI]:
    """Yield the prepared datasets of `model` and of the models that it began with, each once.

    Raises `ValueError` after these if the first one began with a file of weights, whose images nobody knows.
    """
    datasets: set[DatasetURI] = set()
    initial: URI | None = model
    while initial is not None:
        checkpoint, trained = initial, manifest.load(initial)
        dataset = DatasetURI(trained.parent("prepared", of=checkpoint))
        if dataset not in datasets:
            datasets.add(dataset)
            yield dataset
        initial = trained.parent("initial", of=checkpoint) if "initial" in trained.parents else None
    if trained.parameters.get("training", {}).get("start") == "file":
        raise ValueError("training began with a file of weights, which names no images")
