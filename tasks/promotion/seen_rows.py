"""Test rows that count for no model: one of the compared models has seen the same image in training."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage import manifest
from storage.manifest import Damaged
from storage.uri import URI, CheckpointURI, DatasetURI
from tasks.jobs import row_tables
from tasks.promotion.correct_rows import Answers


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
        digests, missing = _seen_by(model)
        seen = pc.is_in(rows["digest"], value_set=digests).to_numpy()
        is_seen |= seen
        by += [f"{seen.sum():,} of {name}"] if seen.any() else []
        unknown += f"; whether {name} was trained on test rows could not be checked: {missing}" if missing else ""
    lost = sorted(set(test.labels.tolist()) - set(test.labels[~is_seen].tolist()))
    excluded = f"; {is_seen.sum():,} of {len(rows):,} test rows excluded, as they were training or validation rows: "
    note = excluded + ", ".join(by) if by else ""
    return SeenRows(
        ids=test.ids[is_seen].tolist(), lost_classes=[test.classes[label] for label in lost], note=note + unknown
    )


def _seen_by(model: CheckpointURI) -> tuple[pa.ChunkedArray, str]:
    """Return the digests of the images that `model` has seen in training, and what of them could not be read."""
    chunks: list[pa.Array] = []
    missing = ""
    try:
        for prepared in _datasets(model):
            rows = row_tables.read_digests(prepared)
            chunks += rows.filter(pc.not_equal(rows["split"], "test"))["digest"].chunks
    except KeyError:
        missing = "it does not record its data"
    except (FileNotFoundError, PermissionError, Damaged, ValueError) as error:  # deleted, or in another storage root
        missing = str(error)
    return pa.chunked_array(chunks, row_tables.DIGEST_SCHEMA.field("digest").type), missing


def _datasets(model: URI) -> Iterator[DatasetURI]:
    """Yield the prepared datasets of `model` and of the models that it began with, each once."""
    datasets: set[DatasetURI] = set()
    initial: URI | None = model
    while initial is not None:
        checkpoint, trained = initial, manifest.load(initial)
        dataset = DatasetURI(trained.parent("prepared", of=checkpoint))
        if dataset not in datasets:
            datasets.add(dataset)
            yield dataset
        initial = trained.parent("initial", of=checkpoint) if "initial" in trained.parents else None
