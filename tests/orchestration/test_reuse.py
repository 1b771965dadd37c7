"""A result made from earlier bytes of a parent is not reused: the run stops and names the command that deletes it."""

import pytest

from storage import commits, files
from storage.kinds import DatasetURI
from storage.uri import URI, Root
from tasks.learning.recipes import Split
from tasks.orchestration.stage import ParentChanged, make_once
from tasks.stages import Preprocess, Train
from tests import committed
from tests.jobs.raw import recipe


def commit(uri: URI, kind: str, content: bytes, **parents: URI) -> None:
    """A result that holds `content`."""
    listed = [commits.write_file(uri, "test/part-00000.bin", content, split="test", rows=1)]
    committed.commit(uri, kind, listed, parents=parents)


@pytest.fixture
def raw(root: Root) -> DatasetURI:
    """A raw dataset, from which a prepared one was made."""
    uri = DatasetURI(root.child("datasets/raw/data-0123456789ab"))
    commit(uri, "raw", b"before")
    commit(Preprocess(raw=uri).target, "prepared", b"prepared", raw=uri)
    return uri


def prepared_of(raw: URI, *, root: Root | None = None) -> DatasetURI:
    """Return the prepared dataset of `raw`, which must be there."""
    stage = Preprocess(root=root, raw=DatasetURI(raw), split=Split())
    return make_once(stage, lambda: pytest.fail("it must not be made again"))


def test_result_of_a_parent_made_again_to_other_bytes_stops_the_run(root: Root, raw: DatasetURI) -> None:
    prepared = prepared_of(raw)
    commit(Train(prepared=prepared, recipe=recipe()).target, "checkpoint", b"model", prepared=prepared)
    files.remove(raw)
    commit(raw, "raw", b"now")
    delete = "aws s3 rm --recursive s3://" if root.is_s3 else "rm -r /"
    commands = rf"{delete}\S*/prepared/\S+ && {delete}\S*/checkpoints/"
    with pytest.raises(ParentChanged, match=f"other bytes than .*: {commands}"):
        prepared_of(raw)


def test_result_of_a_parent_made_again_to_the_same_bytes_is_reused(raw: DatasetURI) -> None:
    files.remove(raw)
    prepared = prepared_of(raw)  # a parent that is gone is no reason to make it again
    commit(raw, "raw", b"before")
    assert prepared_of(raw) == prepared


def test_result_of_another_roots_parent_with_the_same_name_is_not_reused(root: Root, raw: DatasetURI) -> None:
    theirs = root.child(f"there/datasets/raw/{raw.name}")
    commit(theirs, "raw", b"theirs")
    with pytest.raises(ParentChanged):
        prepared_of(theirs, root=root)
    copy = root.child(f"copy/datasets/raw/{raw.name}")
    commit(copy, "raw", b"before")
    assert prepared_of(copy, root=root) == prepared_of(raw)
