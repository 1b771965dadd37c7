"""Large files: the same guarantees as for small ones, with a piece in memory at a time."""

import hashlib
import random
from pathlib import Path

import pytest

from storage import files, manifest
from storage import s3 as s3_verbs
from storage.manifest import Damaged, File
from storage.uri import URI, Root
from tests.s3 import Server

_PIECE = 2**20


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_verbs, "PIECE_BYTES", _PIECE)


def written(folder: Path, size: int) -> tuple[Path, bytes]:
    """A local file of `size` bytes, and what it holds."""
    content = random.Random(size).randbytes(size)
    (folder / "source").write_bytes(content)
    return folder / "source", content


def test_a_file_of_any_size_comes_back_as_it_was_put_and_takes_the_place_of_what_was_there(
    root: Root, tmp_path: Path
) -> None:
    for size in (0, 1, _PIECE - 1, _PIECE, 2 * _PIECE + 1):
        path, content = written(tmp_path, size)
        files.put(root.child("folder/file"), path)
        assert [entry.path for entry in files.walk(root)] == ["folder/file"]
        assert b"".join(files.pieces(root.child("folder/file"))) == content
        assert files.sha256(root.child("folder/file")) == hashlib.sha256(content).hexdigest()
    with pytest.raises(FileNotFoundError):
        list(files.pieces(root.child("missing")))


def test_a_listed_file_is_fetched_only_as_it_was_committed(root: Root, tmp_path: Path) -> None:
    path, content = written(tmp_path, _PIECE + 7)
    uri = root.child("data-0123456789ab")
    files.put(uri.child("file"), path)
    listed = File(path="file", size=len(content), sha256=hashlib.sha256(content).hexdigest())
    manifest.fetch_file(uri, listed, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == content
    files.put(uri.child("file"), content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(Damaged, match=r"file is damaged: its content is not what was committed \(SHA-256\)"):
        manifest.fetch_file(uri, listed, tmp_path / "other")
    files.remove(uri.child("file"))
    with pytest.raises(Damaged, match="file is damaged: it is missing"):
        manifest.fetch_file(uri, listed, tmp_path / "third")


def test_a_file_that_is_overwritten_while_it_is_read_is_refused(s3: Server, tmp_path: Path) -> None:
    uri = URI(f"s3://{s3.bucket}/overwritten")
    files.put(uri, written(tmp_path, 2 * _PIECE)[0])
    reading = files.pieces(uri)
    next(reading)
    files.put(uri, b"other" * _PIECE)
    with pytest.raises(OSError, match="it was overwritten while being read"):
        next(reading)


def test_large_local_file_is_sent_in_parts(s3: Server, tmp_path: Path) -> None:
    uri, path, size = URI(f"s3://{s3.bucket}/in-parts"), tmp_path / "zeros", 33 * 2**20
    with path.open("wb") as file:
        file.truncate(size)
    files.put(uri, path)
    etag = files.entry(uri).etag
    assert etag and etag.endswith("-3"), "three parts of at most 16 MiB"
    assert files.entry(uri).size == size
