"""The files of a data set are stored as their mirror served them, one by one, and only missing ones are fetched."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
import tenacity

from storage import files, manifest
from storage.uri import FilesURI, Root
from tasks.download import download
from tasks.learning import downloading, recipes
from tasks.learning.downloading import DownloadFailed
from tasks.learning.sources.mnist_sample import FOLDER, SOURCE
from tasks.planning import make_plan
from tasks.planning.plan import Plan
from tests import mirrors
from tests.image_folder import write_folder
from tests.ingested import ingested
from tests.mirrors import Mirror

NAMES = [file.name for file in SOURCE.files]


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(downloading, "_PAUSES", tenacity.wait_none())
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def mirror() -> Iterator[Mirror]:
    with mirrors.serve(FOLDER) as running:
        yield running


def asked_of(root: Root, *addresses: str, refresh: int = 0) -> Plan:
    """The plan of a run on the sample that has these mirrors only."""
    made = Plan(root=root, recipe=recipes.load("mnist-sample-resnet18"), refresh=refresh)
    vars(made)["source"] = dataclasses.replace(SOURCE, mirrors=addresses)
    return made


def contents(uri: FilesURI) -> dict[str, bytes]:
    """Each file that is committed there."""
    return {file.path: files.read(uri.child(file.path)) for file in manifest.verify(uri).files}


def test_files_are_kept_as_the_mirror_served_them(root: Root, mirror: Mirror) -> None:
    asked = asked_of(root, mirror.address)
    uri = download.fn(asked)
    assert uri is not None and uri == asked.files and uri.startswith(root.child("downloads/mnist-sample-"))
    assert contents(uri) == {name: (FOLDER / name).read_bytes() for name in NAMES}
    assert {entry.path for entry in files.walk(uri)} == {*NAMES, manifest.NAME}
    expected = [
        {"name": file.name, "md5": file.md5, "sha256": file.sha256, "url": mirror.address + file.name}
        for file in SOURCE.files
    ]
    assert manifest.load(uri).statistics["sources"] == expected
    assert files.walk(root.child("runs")) == []


def test_a_download_that_was_cut_off_goes_on_file_by_file(root: Root, mirror: Mirror) -> None:
    mirror.misbehave(NAMES[2], always=404)
    with pytest.raises(DownloadFailed):
        download.fn(asked_of(root, mirror.address))
    with mirrors.serve(FOLDER) as other:
        uri = download.fn(asked_of(root, other.address))
        assert set(other.requests) == set(NAMES[2:])
    assert uri is not None and set(contents(uri)) == set(NAMES)
    origins = [source["url"] for source in manifest.load(uri).statistics["sources"]]
    assert origins == [mirror.address + name for name in NAMES[:2]] + [other.address + name for name in NAMES[2:]]


def test_a_file_with_other_bytes_is_fetched_again(root: Root, mirror: Mirror) -> None:
    asked = asked_of(root, mirror.address)
    assert asked.files is not None
    files.put(asked.files.child(NAMES[0]), b"left by somebody")
    download.fn(asked)
    assert contents(asked.files)[NAMES[0]] == (FOLDER / NAMES[0]).read_bytes()


def test_nothing_is_downloaded_for_what_a_person_names(tmp_path: Path) -> None:
    own = write_folder(tmp_path / "fruit", train=3, test=2)
    asked = make_plan.make_plan(
        storage=str(tmp_path / "root"), recipe=recipes.load("images-resnet18"), data=str(own), download_timeout_s=60
    )
    assert asked.files is None and download.fn(asked) is None
    sample = make_plan.make_plan(storage=str(tmp_path / "root"), recipe=recipes.load("mnist-sample-resnet18"))
    given = make_plan.make_plan(storage=str(tmp_path / "root"), recipe=sample.recipe, data=str(ingested(sample)))
    assert given.files is None and download.fn(given) is None


def test_files_that_are_gone_are_not_fetched_for_a_raw_dataset_that_is_there(root: Root) -> None:
    asked = Plan(root=root, recipe=recipes.load("mnist-sample-resnet18"))
    raw = ingested(asked)
    assert asked.files is not None and download.fn(asked) == asked.files
    files.remove(asked.files.child(NAMES[0]))
    assert download.fn(asked) is None, "they are damaged, and nothing needs them"
    files.remove(asked.files)
    assert download.fn(asked) is None
    assert ingested(asked) == raw
    assert not files.exists(asked.files.child(manifest.NAME))


def test_files_are_fetched_again_where_the_raw_dataset_is_gone_too(root: Root) -> None:
    asked = Plan(root=root, recipe=recipes.load("mnist-sample-resnet18"))
    before = manifest.load(ingested(asked))
    assert asked.files is not None
    files.remove(asked.raw)
    files.remove(asked.files)
    assert manifest.load(ingested(asked)).files == before.files
    assert set(contents(asked.files)) == set(NAMES)
