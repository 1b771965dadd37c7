"""Test rows that count for no model: one of the compared models has seen the same image in training."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from storage import manifest, tables
from storage.kinds import CheckpointURI, DatasetURI
from storage.manifest import Damaged
from storage.uri import URI
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


def find(test: Answers, models: Mapping[str, CheckpointURI]) -> SeenRows:
    """Find the rows of `test` whose image one of `models`, by its name in a sentence, has seen in training.

    The models whose weights a training began with count too. What no longer exists cannot be checked; the note says so.
    """
    rows = row_tables.read_digests(test.dataset)
    rows = rows.filter(pc.equal(rows["split"], "test")).sort_by("id")
    assert np.array_equal(rows["id"].to_numpy(), test.ids), "the predictions are for other test rows"
    is_seen, by, unknown = np.zeros(len(rows), bool), [], ""
    for name, model in models.items():
        seen, missing = _seen_by(model, rows, test.dataset)
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


def _seen_by(model: URI, rows: pa.Table, dataset: DatasetURI) -> tuple[np.ndarray, str]:
    """Return which `rows` of `dataset` `model` was trained or validated on, and why that could not be checked."""
    is_seen, missing = np.zeros(len(rows), bool), ""
    try:
        for prepared in _datasets(model):
            if _shape(prepared) != _shape(dataset):
                raise ValueError(f"{prepared} has images of another size")
            seen = row_tables.read_digests(prepared)
            seen = seen.filter(pc.is_in(seen["split"], value_set=pa.array(["train", "validation"])))
            is_seen |= pc.is_in(rows["digest"], value_set=seen["digest"]).to_numpy()
    except KeyError:
        missing = "it does not record its data"
    except (FileNotFoundError, PermissionError, Damaged, ValueError) as error:  # deleted, or in another storage root
        missing = str(error)
    return is_seen, missing


def _shape(dataset: DatasetURI) -> tuple[int, int, int]:
    return images.shape_of(manifest.load(dataset).columns["metadata"])


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
