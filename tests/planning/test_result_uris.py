"""A result made from earlier bytes of a parent is not reused: the run stops and names the command that deletes it."""

import pytest

from storage import commits, files
from storage.uri import URI, DatasetURI, Root
from tasks.orchestration.stage import ParentChanged, stage
from tests import committed


def commit(uri: URI, kind: str, content: bytes, **parents: URI) -> None:
    """A result that holds `content`."""
    listed = [commits.write_file(uri, "test/part-00000.bin", content, split="test", rows=1)]
    committed.commit(uri, kind, listed, parents=parents)


@pytest.fixture
def raw(root: Root) -> DatasetURI:
    """A raw dataset, from which `prepared` was made."""
    uri = DatasetURI(root.child("datasets/raw/data-0123456789ab"))
    commit(uri, "raw", b"before")
    commit(prepared_of(root), "prepared", b"prepared", raw=uri)
    return uri


def prepared_of(root: Root) -> DatasetURI:
    return DatasetURI(root.child("datasets/prepared/data-0123456789ab"))


def test_result_of_a_parent_made_again_to_other_bytes_stops_the_run(root: Root, raw: DatasetURI) -> None:
    files.remove(raw)
    commit(raw, "raw", b"now")
    checkpoint = root.child("checkpoints/data-0123456789ab")
    commit(checkpoint, "checkpoint", b"model", prepared=prepared_of(root))
    delete = "aws s3 rm --recursive s3://" if root.is_s3 else "rm -r /"
    commands = rf"{delete}\S*/prepared/\S+ && {delete}\S*/checkpoints/"
    with (
        pytest.raises(ParentChanged, match=f"other bytes than .*: {commands}"),
        stage("preprocess", prepared_of(root), parents={"raw": raw}),
    ):
        raise AssertionError("it must not begin")


def test_result_of_a_parent_made_again_to_the_same_bytes_is_reused(root: Root, raw: DatasetURI) -> None:
    files.remove(raw)
    with stage("preprocess", prepared_of(root), parents={"raw": raw}) as current:
        assert current.reused, "a parent that is gone is no reason to make it again"
    commit(raw, "raw", b"before")
    with stage("preprocess", prepared_of(root), parents={"raw": raw}) as current:
        assert current.reused


def test_result_of_another_roots_parent_with_the_same_name_is_not_reused(root: Root, raw: DatasetURI) -> None:
    theirs = DatasetURI(root.child(f"there/datasets/raw/{raw.name}"))
    commit(theirs, "raw", b"theirs")
    with pytest.raises(ParentChanged), stage("preprocess", prepared_of(root), parents={"raw": theirs}):
        pass
    copy = DatasetURI(root.child(f"copy/datasets/raw/{raw.name}"))
    commit(copy, "raw", b"before")
    with stage("preprocess", prepared_of(root), parents={"raw": copy}) as current:
        assert current.reused
