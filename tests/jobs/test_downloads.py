"""From a data set's files to a raw dataset: rows are unchanged, and anything that is not images is refused."""

from pathlib import Path

import numpy as np
import pytest

from storage import files, manifest, tables
from storage.kinds import RAW, DatasetURI
from storage.uri import Root
from tasks.jobs.ingest.downloads import write_split
from tasks.learning import recipes
from tasks.learning.sources import Split
from tasks.planning import make_plan
from tasks.planning.plan import Plan
from tests.images import pets
from tests.ingested import ingested

IMAGES = np.arange(24, dtype=np.uint8).reshape(6, 2, 2, 1)
LABELS = np.array([0, 1, 0, 1, 0, 1])


@pytest.fixture
def plan(root: Root, tmp_path: Path) -> Plan:
    """The plan of a run on pets, whose files lie in `tmp_path / "mirror"`."""
    (tmp_path / "mirror").mkdir()
    pets.write_files(tmp_path / "mirror")
    return make_plan.make_plan(
        storage=root, recipe=recipes.load(f"{pets.__file__}:recipe"), mirror=[str(tmp_path / "mirror")]
    )


def test_rows_are_numbered_in_the_order_of_the_source(plan: Plan) -> None:
    uri = ingested(plan)
    assert files.walk(plan.root.child("runs")) == [], "what only attempts need is removed"
    raw = manifest.verify(uri)
    for split in ("train", "test"):
        expected = pets.rows(split)
        rows = tables.read_split(uri, split)
        assert rows["id"].to_pylist() == list(range(len(expected)))
        assert rows["label"].to_pylist() == expected[:, 0].tolist(), "a label of no class stays as it came"
        assert b"".join(rows["image"].to_pylist()) == expected[:, 1:].tobytes()
    assert raw.statistics_of(RAW).class_counts == {"train": {"cat": 44, "dog": 35}, "test": {"cat": 21, "dog": 16}}
    assert plan.download and raw.parent("files", of=uri) == plan.download.target
    assert [source.sha256 for source in raw.statistics_of(RAW).sources] == [f.sha256 for f in pets.SOURCE.files]


@pytest.mark.parametrize(
    ("images", "labels", "message"),
    [
        (IMAGES[:0], LABELS[:0], "pets train: `read` returned no images"),
        (IMAGES.astype(np.float32), LABELS, r"images must be uint8 \(2, 2, 1\), got float32 \(2, 2, 1\)"),
        (IMAGES[:, :1], LABELS, r"images must be uint8 \(2, 2, 1\), got uint8 \(1, 2, 1\)"),
        (IMAGES, LABELS[:5], r"labels must be int64 \(6,\), got int64 \(5,\)"),
        (IMAGES, LABELS * 0.5, r"labels must be int64 \(6,\), got float64 \(6,\)"),
    ],
)
def test_wrong_number_shape_or_dtype_is_refused_with_expected_and_found(
    tmp_path: Path, images: np.ndarray, labels: np.ndarray, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        write_split(pets.SOURCE, raw(tmp_path), Split("train", images, labels))
    assert not Path(raw(tmp_path)).exists()


def raw(folder: Path) -> DatasetURI:
    return DatasetURI(f"{folder}/pets-0123456789ab")
