"""The files of a data set are stored as their mirror served them, one by one, and only missing ones are fetched."""

import dataclasses
from collections.abc import Iterator

import pytest

from storage import files, manifest
from storage.kinds import FILES, FilesURI
from storage.statistics import Origin
from storage.uri import Root
from tasks.download import download
from tasks.learning import recipes
from tasks.learning.downloading import DownloadFailed
from tasks.learning.sources.mnist_sample import FOLDER, SOURCE
from tasks.planning import make_plan
from tasks.planning.plan import Plan
from tasks.stages import Download
from tests import mirrors
from tests.ingested import ingested
from tests.mirrors import Mirror

NAMES = [file.name for file in SOURCE.files]


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def mirror(integration: None) -> Iterator[Mirror]:
    with mirrors.serve(FOLDER) as running:
        yield running


def planned(root: Root) -> Plan:
    return make_plan.make_plan(storage=root, recipe=recipes.load("mnist-sample-resnet18"))


def fetch(root: Root, *addresses: str) -> FilesURI:
    """Download the sample from these mirrors only."""
    return download.fn(Download.of(dataclasses.replace(SOURCE, mirrors=addresses), root))


def contents(uri: FilesURI) -> dict[str, bytes]:
    """Each file that is committed there."""
    return {file.path: files.read(uri.child(file.path)) for file in manifest.verify(uri).files}


def test_files_are_kept_as_the_mirror_served_them(root: Root, mirror: Mirror) -> None:
    uri = fetch(root, mirror.address)
    assert uri == Download.of(SOURCE, root).target and uri.startswith(root.child("downloads/mnist-sample-"))
    assert contents(uri) == {name: (FOLDER / name).read_bytes() for name in NAMES}
    assert {entry.path for entry in files.walk(uri)} == {*NAMES, manifest.NAME}
    expected = tuple(
        Origin(name=file.name, md5=file.md5, sha256=file.sha256, url=mirror.address + file.name)
        for file in SOURCE.files
    )
    assert manifest.load(uri).statistics_of(FILES).sources == expected
    assert files.walk(root.child("runs")) == []


def test_a_download_that_was_cut_off_goes_on_file_by_file(root: Root, mirror: Mirror) -> None:
    mirror.misbehave(NAMES[2], always=404)
    with pytest.raises(DownloadFailed):
        fetch(root, mirror.address)
    with mirrors.serve(FOLDER) as other:
        uri = fetch(root, other.address)
        assert set(other.requests) == set(NAMES[2:])
    assert uri is not None and set(contents(uri)) == set(NAMES)
    origins = [source.url for source in manifest.load(uri).statistics_of(FILES).sources]
    assert origins == ["an earlier attempt"] * 2 + [other.address + name for name in NAMES[2:]]


def test_a_file_with_other_bytes_is_fetched_again(root: Root, mirror: Mirror) -> None:
    uri = Download.of(SOURCE, root).target
    files.put(uri.child(NAMES[0]), b"left by somebody")
    fetch(root, mirror.address)
    assert contents(uri)[NAMES[0]] == (FOLDER / NAMES[0]).read_bytes()


def test_files_that_are_gone_are_not_fetched_for_a_raw_dataset_that_is_there(root: Root) -> None:
    raw = ingested(planned(root))
    uri = Download.of(SOURCE, root).target
    assert contents(uri)
    files.remove(uri.child(NAMES[0]))
    assert planned(root).download is None, "they are damaged, and nothing needs them"
    files.remove(uri)
    assert planned(root).download is None
    assert ingested(planned(root)) == raw
    assert not files.exists(uri.child(manifest.NAME))
    before = manifest.load(raw).files
    files.remove(raw)
    assert manifest.load(ingested(planned(root))).files == before and set(contents(uri)) == set(NAMES)
