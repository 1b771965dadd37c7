"""Downloads: transient errors are retried, and no byte with a wrong checksum is used."""

import dataclasses
import hashlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torchvision

from tasks.learning import downloading
from tasks.learning.downloading import DownloadFailed
from tasks.learning.sources import Split, mnist
from tasks.learning.sources.mnist_sample import FOLDER, SOURCE
from tests import mirrors
from tests.mirrors import Fault, Mirror

NAME = SOURCE.files[0].name


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "*")


@pytest.fixture
def mirror(integration: None) -> Iterator[Mirror]:
    """A mirror with the files of `mnist-sample`."""
    with mirrors.serve(FOLDER) as running:
        yield running


def fetch(folder: Path, *addresses: str, source: Any = SOURCE) -> dict[str, str]:
    """Where each file came from."""
    return mirrors.fetch(source, folder, *addresses)


def is_complete(folder: Path) -> bool:
    """Whether `folder` has exactly the files that come with the project."""
    names = {file.name for file in SOURCE.files}
    return {path.name for path in folder.iterdir()} == names and all(
        (folder / name).read_bytes() == (FOLDER / name).read_bytes() for name in names
    )


class TestFetch:
    @pytest.mark.parametrize("fault", [503, 429, "reset", "truncated"])
    def test_fault_of_the_network_is_tried_again(self, tmp_path: Path, mirror: Mirror, fault: Fault) -> None:
        mirror.misbehave(NAME, fault)
        assert fetch(tmp_path, mirror.address)[NAME] == mirror.address + NAME
        assert mirror.requests.count(NAME) == 2
        assert is_complete(tmp_path)

    @pytest.mark.parametrize(("fault", "requests"), [(503, 4), (404, 1), ("wrong", 2)])
    def test_mirror_that_stays_faulty_is_left_for_the_next(
        self, tmp_path: Path, mirror: Mirror, fault: Fault, requests: int
    ) -> None:
        mirror.misbehave(NAME, always=fault)
        with mirrors.serve(FOLDER) as other:
            assert fetch(tmp_path, mirror.address, other.address)[NAME] == other.address + NAME
        assert mirror.requests.count(NAME) == requests
        assert is_complete(tmp_path)

    def test_wrong_checksum_names_file_mirror_and_both_digests(self, tmp_path: Path, mirror: Mirror) -> None:
        mirror.misbehave(NAME, always="wrong")
        with pytest.raises(DownloadFailed) as caught:
            fetch(tmp_path, mirror.address)
        digest = hashlib.md5((FOLDER / NAME).read_bytes()[::-1]).hexdigest()
        for part in (NAME, mirror.address, f"expected {SOURCE.files[0].md5}", f"found {digest}"):
            assert part in str(caught.value)
        assert list(tmp_path.iterdir()) == []

    def test_right_md5_alone_is_not_enough(self, tmp_path: Path, mirror: Mirror) -> None:
        files = (dataclasses.replace(SOURCE.files[0], sha256="0" * 64), *SOURCE.files[1:])
        with pytest.raises(DownloadFailed, match=f"wrong sha256: expected 0{{64}}, found {SOURCE.files[0].sha256}"):
            fetch(tmp_path, mirror.address, source=dataclasses.replace(SOURCE, files=files))
        assert list(tmp_path.iterdir()) == []

    def test_failure_of_all_mirrors_names_each_of_them_and_why(self, tmp_path: Path, mirror: Mirror) -> None:
        mirror.misbehave(NAME, always=404)
        with mirrors.refusing() as closed, pytest.raises(DownloadFailed) as caught:
            fetch(tmp_path, mirror.address, closed)
        assert str(caught.value).startswith(f"{NAME} could not be fetched; {mirror.address}: HTTP Error 404")
        assert f"{closed}: <urlopen error [Errno" in str(caught.value)


@pytest.mark.parametrize("fault", [503, 404, "garbage"])
def test_source_is_reachable_if_one_of_its_mirrors_gives_any_answer(mirror: Mirror, fault: Fault) -> None:
    mirror.misbehave(NAME, always=fault)
    with mirrors.refusing() as closed:
        downloading.check_reachable(dataclasses.replace(SOURCE, mirrors=(closed,)), [mirror.address])
        with pytest.raises(
            ValueError, match=re.escape(f"no mirror of mnist-sample can be reached ({closed}, {closed})")
        ):
            downloading.check_reachable(dataclasses.replace(SOURCE, mirrors=(closed,)), [f"{closed}?key=secret"])


class TestMirrorAddress:
    @pytest.mark.parametrize("name", ["with space", "Größe 数字", "100%41#x?y"])
    def test_folder_and_address_of_any_name_are_mirrors(self, tmp_path: Path, name: str) -> None:
        copy_of_the_files(tmp_path / "served" / name)
        with mirrors.serve(tmp_path / "served") as running:
            for mirror in (str(tmp_path / "served" / name), *[f"{running.address}{name}"] * ("#" not in name)):
                (folder := tmp_path / f"from {mirror[:4]}".replace("/", "-")).mkdir()
                fetch(folder, downloading.mirror_address(mirror))
                assert is_complete(folder)

    @pytest.mark.parametrize(
        ("mirror", "address"),
        [("ftp://user:secret@host/", "ftp://***@host/"), ("https://host/?key=secret&file=", "https://host/")],
    )
    def test_mirror_with_a_secret_is_refused_without_showing_it(self, mirror: str, address: str) -> None:
        message = f"mirrors must be addresses without credentials or query, got {address!r}; download the files"
        with pytest.raises(ValueError, match=re.escape(message)):
            dataclasses.replace(SOURCE, mirrors=("https://host/a@b/", mirror))


class TestSources:
    def test_mnist_has_the_checksums_and_mirrors_of_torchvision(self) -> None:
        assert {(file.name, file.md5) for file in mnist.SOURCE.files} == set(torchvision.datasets.MNIST.resources)
        assert list(mnist.SOURCE.mirrors) == torchvision.datasets.MNIST.mirrors

    def test_digits_are_read_with_their_labels(self, digits: dict[str, Split]) -> None:
        for name, count, first in (("train", 6000, [5, 0, 4, 1, 9]), ("test", 1000, [7, 2, 1, 0, 4])):
            split = digits[name]
            assert (split.images.shape, str(split.images.dtype)) == ((count, 28, 28, 1), "uint8")
            assert (split.labels.shape, str(split.labels.dtype)) == ((count,), "int64")
            assert split.labels[:5].tolist() == first


def copy_of_the_files(folder: Path) -> Path:
    folder.mkdir(parents=True)
    for file in SOURCE.files:
        (folder / file.name).write_bytes((FOLDER / file.name).read_bytes())
    return folder
