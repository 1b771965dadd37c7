"""The data themselves change between two runs."""

import numpy as np

from storage import manifest, tables
from storage.uri import URI, DatasetURI
from tasks.learning import images
from tests.faults.case import Case, Failed
from tests.faults.harness import commit_raw, raw_name
from tests.faults.kinds.register import kind


@kind("data grows before a warm start")
def _data_grows_before_a_warm_start(case: Case) -> None:
    case.begin(after="promotion")
    before = DatasetURI(str(case.paths("datasets/prepared/*")[0]))
    raw, grown = (
        DatasetURI(case.root.child(f"datasets/raw/{name}")) for name in (raw_name(), "mnist-sample-000000002004")
    )
    case.damage(lambda: _grow(raw, grown), what="training rows")
    case.settings, case.options = ("start=champion",), ("--data", grown)
    result = case.settle(case.start())
    after = URI(result["uris"]["prepared"])
    if "initial" not in manifest.load(URI(result["uris"]["checkpoint"])).parents:
        raise Failed("the training did not begin with the champion")
    learned = set(tables.read_split(before, "train")["image"].to_pylist())
    leaked = [image for image in tables.read_split(after, "validation")["image"].to_pylist() if image in learned]
    if leaked:
        raise Failed(f"{len(leaked)} validation rows had been training rows of the champion")


def _grow(raw: DatasetURI, grown: DatasetURI) -> None:
    """Commit the rows of `raw` and one more that comes first, so that every training row gets another number."""
    committed = manifest.load(raw)
    metadata = committed.columns["metadata"]
    rows = tables.read_split(raw, "train")
    pixels, labels = images.to_arrays(rows, images.shape_of(metadata))
    assert labels is not None
    train = images.to_table(
        np.arange(len(rows) + 1),
        np.concatenate([255 - pixels[:1], pixels]),
        np.concatenate([labels[:1], labels]),
        classes=images.classes_of(metadata),
    )
    commit_raw(grown, {"train": train, "test": tables.read_split(raw, "test")}, like=committed)
