"""Guarantees of a manifest: a dataset exists completely or not at all, and never changes."""

import datetime
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage import commits, files, manifest
from storage.kinds import KINDS, DatasetURI
from storage.manifest import Damaged, File, Manifest
from storage.uri import URI, Root
from tests import committed


@pytest.fixture
def uri(root: Root) -> DatasetURI:
    """A place where nothing is committed yet."""
    return DatasetURI(root.child("datasets/raw/mnist-0123456789ab"))


def write(uri: URI, content: bytes = b"content") -> File:
    """One file, not yet listed anywhere."""
    return commits.write_file(uri, "train/part-00000.bin", content, split="train", rows=1)


def commit(uri: URI, *listed: File, note: object = None) -> Manifest:
    """Commit `listed`; `note` tells committers apart."""
    return committed.commit(uri, "raw", listed, parameters={"note": note})


class TestCommit:
    def test_committed_manifest_is_loaded_as_it_was_whatever_a_frozen_writer_does_later(self, uri: DatasetURI) -> None:
        before, file = datetime.datetime.now(datetime.UTC), write(uri)
        committed = commit(uri, file, note={"tuple": (1, 2), "keys": {3: "three"}})
        write(uri, b"of a frozen writer")
        assert manifest.load(uri) == manifest.verify(uri) == committed
        assert committed.split("train") == [file] and manifest.read_file(uri, file) == b"content"
        assert before <= committed.created <= datetime.datetime.now(datetime.UTC)
        later = committed.model_copy(update={"created": datetime.datetime.now(datetime.UTC)})
        files.put(uri.child(manifest.NAME), later.to_json())
        with pytest.raises(Damaged, match="is not what was committed"):
            manifest.load(uri)

    def test_all_of_eight_committers_get_the_same_manifest(self, uri: DatasetURI) -> None:
        file = write(uri)
        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(lambda note: commit(uri, file, note=note), range(8)))
        assert results == [manifest.load(uri)] * 8

    def test_fixed_name_is_that_of_the_newest_attempt_and_of_none_after_the_commit(self, uri: DatasetURI) -> None:
        _, file = (commits.write_file(uri, "index.html", content, fixed_name=True) for content in (b"older", b"newer"))
        commit(uri, file)
        assert file.path != commits.write_file(uri, "index.html", b"of a frozen writer", fixed_name=True).path
        assert file.path == "index.html" and manifest.read_file(uri, file) == b"newer"


class TestDamage:
    def test_files_are_checked_by_one_listing(self, uri: DatasetURI, monkeypatch: pytest.MonkeyPatch) -> None:
        committed = commit(uri, write(uri))
        listings = [files.walk(uri)]
        monkeypatch.setattr(files, "walk", lambda folder: listings.pop())
        monkeypatch.setattr(files, "entry", lambda place: pytest.fail(f"a request for {place} alone"))
        assert manifest.find(uri) == committed and not listings

    @pytest.mark.parametrize(
        ("content", "problem"),
        [(b"cOntent", "SHA-256"), (b"cont", "it has 4 bytes instead of 7"), (None, "it is missing")],
    )
    def test_every_damage_is_noticed_by_name(
        self, uri: DatasetURI, tmp_path: Path, content: bytes | None, problem: str
    ) -> None:
        file = write(uri)
        commit(uri, file)
        manifest.fetch_file(uri, file, tmp_path / "copy")
        assert (tmp_path / "copy").read_bytes() == manifest.read_file(uri, file) == b"content"
        # As no code of the project does.
        files.remove(uri.child(file.path)) if content is None else files.put(uri.child(file.path), content)
        checks: list[Callable[[], object]] = [
            lambda: manifest.verify(uri),
            lambda: manifest.read_file(uri, file),
            lambda: manifest.fetch_file(uri, file, tmp_path / "other"),
        ]
        for check in checks if problem == "SHA-256" else [*checks, lambda: manifest.find(uri)]:
            with pytest.raises(Damaged, match=f"{file.path} is damaged: .*{problem}"):
                check()

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda text: text[:20], r"_manifest.json cannot be read \(JSON: .*; restore it from a copy, or delete"),
            (lambda text: text.replace('"rows"', '"rovs"'), r"cannot be read \(rows: Field required\); restore it"),
            (
                lambda text: text.replace('"seconds"', '"secs"'),
                r"\(statistics.seconds: Field required\); restore it",
            ),
            (
                lambda text: text.replace('"labels"', '"mood": 1, "labels"'),
                "written by version 0.2.0, newer than this one",
            ),
            (lambda text: '{"format": 3}', r"written by a newer version than this one, 0.1.0.* \(format: .*: update"),
            (lambda text: text.replace('"rows"', '"seal": {}, "rows"'), "written by version 0.2.0, newer than this"),
            (lambda text: text.replace('"raw"', '"film"'), "written by version 0.2.0, newer than this one, 0.1.0"),
        ],
    )
    def test_garbled_manifest_is_damage_and_one_of_a_newer_version_is_not(
        self, uri: DatasetURI, change: Callable[[str], str], message: str
    ) -> None:
        recorded = commit(uri).model_copy(update={"producer": {"data-to-model": "0.2.0"}}).signed()
        files.put(uri.child(manifest.NAME), change(recorded.to_json().decode()).encode())
        with pytest.raises(Damaged, match=message) as caught:
            manifest.find(uri)
        assert ("delete" in str(caught.value)) == ("restore" in message)

    @pytest.mark.parametrize("kind", KINDS)
    def test_result_of_each_kind_has_exactly_the_statistics_that_its_class_names(self, root: Root, kind: str) -> None:
        uri, usual = KINDS[kind].place(root, "x-0123456789ab"), committed.statistics(kind)
        committed.commit(uri, kind)
        assert manifest.load(uri).statistics_of(KINDS[kind]) == usual
        with pytest.raises(ValueError, match="misspelled\n.*Extra inputs"):
            committed.statistics(kind, misspelled=1)
        other = committed.statistics("raw" if kind == "audit" else "audit")
        with pytest.raises(AssertionError, match=f"{kind} has no .*Statistics"):
            commits.commit(uri, kind=kind, parents={}, parameters={}, listed=[], statistics=other)

    def test_manifest_cannot_point_out_of_its_uri(self) -> None:
        for path in ("../secret", "/etc/passwd", "a/../../b", ".hidden", "a//b", ""):
            with pytest.raises(ValueError, match="path"):
                File(path=path, size=0, sha256="")
