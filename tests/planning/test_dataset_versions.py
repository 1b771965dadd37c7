"""Versions of a data set, and the ones that a backfill selects."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from flows.cli import app, start
from storage import commits, manifest
from storage.uri import DatasetURI, Root
from tasks.learning import recipes
from tasks.planning import make_plan
from tasks.planning.dataset_versions import check_one, chosen, known
from tests.runs import no_flow

_NAMES = ["mnist-00000000000b", "mnist-00000000000c", "mnist-00000000000a"]
"""Oldest first, which is not their order by name."""


@pytest.fixture
def versions(tmp_path: Path) -> list[DatasetURI]:
    """Three committed versions of `mnist`, beside one of another data set and one that was never committed.

    The files were copied since, the youngest one first.
    """
    root = Root(str(tmp_path / "root"))
    for age, name in enumerate([*_NAMES, "fashion-mnist-00000000000d"]):
        uri = DatasetURI(root.child(f"datasets/raw/{name}"))
        data = name.rpartition("-")[0]
        commits.commit(uri, kind="raw", parents={}, parameters={"data": data}, listed=[])
        os.utime(uri.child(manifest.NAME), (2e9 - age, 2e9 - age))
    (tmp_path / "root/datasets/raw/mnist-00000000000e/train").mkdir(parents=True)
    return known(root, "mnist")


def test_versions_are_the_committed_raw_datasets_oldest_first(versions: list[DatasetURI]) -> None:
    assert [uri.name for uri in versions] == _NAMES


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({}, [0, 1, 2]),
        ({"names": [_NAMES[2], f"/copied/datasets/raw/{_NAMES[0]}/", _NAMES[2]]}, [0, 2]),
        ({"first": _NAMES[1]}, [1, 2]),
        ({"last": _NAMES[1]}, [0, 1]),
        ({"first": _NAMES[1], "last": _NAMES[1]}, [1]),
    ],
)
def test_a_list_or_a_range_chooses_among_them(
    versions: list[DatasetURI], asked: dict[str, object], expected: list[int]
) -> None:
    assert chosen(versions, **asked) == [versions[number] for number in expected]  # type: ignore[arg-type]


def _own(root: Root, name: str, place: str, *, listed: Any = (), schema: Any = None, **more: Any) -> DatasetURI:
    """A raw dataset of a user's own images."""
    uri = DatasetURI(root.child(f"datasets/raw/{name}"))
    parameters = {"data": name.rpartition("-")[0], "image_size": 64} | more
    about: dict[str, Any] = {"statistics": {"sources": [{"name": "files", "sha256": "", "url": place}]}}
    about |= {"schema": schema} if schema else {}
    commits.commit(uri, kind="raw", parents={}, parameters=parameters, listed=list(listed), **about)
    return uri


def test_new_pictures_that_were_predicted_are_no_versions(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    photos = _own(root, "photos-00000000000a", "/photos")
    _own(root, "today-00000000000b", "/today", classes=["cat", "dog"])
    assert known(root, "user-images") == [photos]


def test_folders_of_one_name_are_several_data_sets_unless_their_registered_model_is_named(tmp_path: Path) -> None:
    root = Root(str(tmp_path))
    _own(root, "photos-00000000000a", "/a/photos")
    _own(root, "photos-00000000000b", "/a/photos")
    check_one(known(root, "user-images"), named=False)
    _own(root, "photos-00000000000c", "/b/photos")
    with pytest.raises(
        ValueError, match=r"^version: the versions belong to several data sets, photos-\w+, photos-\w+;"
    ):
        check_one(known(root, "user-images"), named=False)
    check_one(known(root, "user-images"), named=True)


def _noted(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The parameters of the flows that would start, in place of which nothing does."""
    requests: list[dict[str, Any]] = []

    def note(_: Any, request: dict[str, Any], **__: Any) -> int:
        requests.append(request)
        return 0

    monkeypatch.setattr(start, "start", note)
    return requests


@pytest.mark.parametrize(("words", "judge_only"), [([], True), (["--promote"], False)])
def test_a_backfill_only_judges_unless_told_to_promote(
    versions: list[DatasetURI], monkeypatch: pytest.MonkeyPatch, words: list[str], judge_only: bool
) -> None:
    requests = _noted(monkeypatch)
    root = str(versions[0]).partition("/datasets")[0]
    assert app.main(no_flow, "backfill", words=[*words, "--storage", root, "--workers", "0"]) == 0
    assert [(request["data"], request["judge_only"]) for request in requests] == [(uri, judge_only) for uri in versions]


def test_a_backfill_of_own_images_does_the_versions_of_one_folder_each_with_the_split_that_it_was_made_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    root = Root(str(tmp_path / "root"))
    names = ["photos-00000000000a", "photos-00000000000b", "trees-00000000000c"]
    schema = {"columns": {}, "metadata": {"shape": "[64, 64, 3]", "dtype": "uint8", "classes": '["cat", "dog"]'}}
    listed = [manifest.File(path=split, split=split, size=1, rows=1, sha256="") for split in ("train", "test")]
    for name in names:
        _own(root, name, f"/{name[:5]}", listed=listed, schema=schema, channels=3, test_fraction=0.3)
    asked = _noted(monkeypatch)
    words = ["--recipe", "images-resnet18", "--storage", root, "--workers", "0"]
    assert app.main(no_flow, "backfill", words=[*words, "--list"]) == 0
    assert [line.rpartition("/")[2] for line in capsys.readouterr().out.splitlines()] == names
    assert app.main(no_flow, "backfill", words=[*words, "--list", "--json"]) == 0
    assert [uri.rpartition("/")[2] for uri in json.loads(capsys.readouterr().out)] == names
    assert app.main(no_flow, "backfill", words=words) == 2
    assert "several data sets, photos, trees; name the versions of one" in capsys.readouterr().err
    assert app.main(no_flow, "backfill", words=[*words, *names[:2]]) == 0
    assert [request["data"].rpartition("/")[2] for request in asked] == names[:2]
    made = make_plan.make_plan(storage=root, recipe=recipes.load("images-resnet18"), data=asked[0]["data"], workers=0)
    assert (made.recipe.data.test_fraction, made.raw.name) == (0.3, names[0])
