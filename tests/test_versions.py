"""Which versions of a data set there are, and which of them a backfill does."""

import os
from pathlib import Path

import pytest

from storage import manifest
from storage.uri import DatasetURI, Root
from tasks.versions import chosen, known

_NAMES = ["mnist-00000000000b", "mnist-00000000000c", "mnist-00000000000a"]
"""Oldest first, which is not their order by name."""


@pytest.fixture
def versions(tmp_path: Path) -> list[DatasetURI]:
    """Three committed versions of `mnist`, beside one of another data set and one that was never committed."""
    root = Root(str(tmp_path / "root"))
    for age, name in enumerate([*reversed(_NAMES), "fashion-mnist-00000000000d"]):
        uri = DatasetURI(root.child(f"datasets/raw/{name}"))
        data = name.rpartition("-")[0]
        manifest.commit(uri, kind="raw", parents={}, parameters={"data": data}, listed=[])
        os.utime(uri.child(manifest.NAME), (1e9 - age, 1e9 - age))
    (tmp_path / "root/datasets/raw/mnist-00000000000e/train").mkdir(parents=True)
    return known(root, "mnist")


def test_versions_are_the_committed_raw_datasets_oldest_first(versions: list[DatasetURI]) -> None:
    assert [uri.name for uri in versions] == _NAMES


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [0, 1, 2]),
        ({"names": [_NAMES[2], _NAMES[0], _NAMES[2]]}, [0, 2]),
        ({"first": _NAMES[1]}, [1, 2]),
        ({"last": _NAMES[1]}, [0, 1]),
        ({"first": _NAMES[1], "last": _NAMES[1]}, [1]),
    ],
)
def test_a_list_or_a_range_chooses_among_them(
    versions: list[DatasetURI], asked: dict[str, object], expected: list[int]
) -> None:
    assert chosen(versions, **asked) == [versions[number] for number in expected]  # type: ignore[arg-type]


def test_a_version_may_be_named_by_its_uri(versions: list[DatasetURI]) -> None:
    assert chosen(versions, names=[f"{versions[1]}/"]) == [versions[1]]


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({"names": ["mnist-1"]}, "version must be one of mnist-00000000000b, .* got 'mnist-1'"),
        ({"first": "x"}, "--from must be one of"),
        ({"first": _NAMES[2], "last": _NAMES[0]}, "is younger than --to"),
        ({"names": [_NAMES[0]], "first": _NAMES[0]}, "cannot be combined"),
    ],
)
def test_what_is_not_there_is_refused_by_name(versions: list[DatasetURI], asked: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        chosen(versions, **asked)  # type: ignore[arg-type]


def test_a_storage_without_versions_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="has no raw dataset of data set 'mnist'"):
        known(Root(str(tmp_path / "nothing")), "mnist")
