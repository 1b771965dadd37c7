"""The contract of `storage.files`, the same on a disk and on S3."""

import contextlib
import errno
import hashlib
import os
import pickle
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from storage import access, files
from storage import s3 as s3_verbs
from storage.s3 import Overwritten
from storage.uri import URI, Root
from tests.s3 import Server

Check = Callable[[Root], None]
CHECKS = pytest.mark.parametrize("check", [access.check_readable, access.check_writable])
_PIECE = 2**20
ODD_NAMES = ["with space", "per%20cent", "st*r[a]", "é", "a+b&c", "{name}", "what?#1"]


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3_verbs, "PIECE_BYTES", _PIECE)


class TestContract:
    def test_file_is_created_once_replaced_and_listed_with_its_size_and_time(self, root: Root) -> None:
        before = time.time()
        files.put(root.child("a/b/file.bin"), b"content", mode="create")
        with pytest.raises(FileExistsError):
            files.put(root.child("a/b/file.bin"), b"second", mode="create")
        assert files.read(root.child("a/b/file.bin")) == b"content"
        files.put(root.child("a/b/file.bin"), b"new")
        assert files.read(root.child("a/b/file.bin")) == b"new"
        (entry,) = files.walk(root)
        assert (entry.path, entry.size) == ("a/b/file.bin", 3)
        assert before - 2 <= entry.modified <= time.time() + 2  # S3 tells whole seconds

    def test_only_a_file_exists_and_an_absent_one_is_named(self, root: Root) -> None:
        files.put(root.child("folder/file"), b"", mode="create")
        assert files.exists(root.child("folder/file"))
        for place in ("folder", "folder/fil", "folder/file/below", "missing"):
            assert not files.exists(root.child(place))
            for verb in (files.read, files.entry):
                with pytest.raises(FileNotFoundError, match=place):
                    verb(root.child(place))

    def test_children_are_the_names_directly_below(self, root: Root) -> None:
        for name in ("b", "a/x", "a/y/z", "abc/x"):
            files.put(root.child(name), b"")
        assert files.children(root) == ["a", "abc", "b"]
        assert files.children(root.child("a")) == ["x", "y"]
        for place in ("missing", "b", "ab"):
            assert files.children(root.child(place)) == [] == files.walk(root.child(place))

    def test_remove_takes_everything_below_and_nothing_beside(self, root: Root) -> None:
        kept, removed = ["ab/file", "a-file"], ["a/x", "a/y/z", "single"]
        for name in kept + removed:
            files.put(root.child(name), b"", mode="create")
        for place in ("a", "a*", "missing", "single"):
            files.remove(root.child(place))
        assert [name for name in kept + removed if files.exists(root.child(name))] == kept

    def test_folder_that_several_remove_at_once_is_gone_for_each(self, root: Root) -> None:
        for number in range(50):
            files.put(root.child(f"a/{number}/x"), b"x", mode="create")

        def is_gone(folder: URI) -> bool:
            files.remove(folder)
            return not files.walk(folder)

        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(is_gone, [root.child("a")] * 4))

    def test_special_characters_in_names_are_literal(self, root: Root) -> None:
        for number, name in enumerate(ODD_NAMES):
            folder = root.child(str(number))
            files.put(folder.child(f"{name}/file"), b"content")
            assert files.children(folder) == [name]
            assert files.children(folder.child(name)) == ["file"]
            assert files.read(folder.child(f"{name}/file")) == b"content"
            assert [entry.path for entry in files.walk(folder)] == [f"{name}/file"]
            files.remove(folder.child(name))
            assert not files.exists(folder.child(f"{name}/file"))

    @pytest.mark.parametrize("size", [0, 1, _PIECE - 1, _PIECE, 2 * _PIECE + 1])
    def test_file_of_any_size_comes_back_as_it_was_put_and_takes_the_place_of_what_was_there(
        self, root: Root, tmp_path: Path, small_pieces: None, size: int
    ) -> None:
        content = random.Random(size).randbytes(size)
        (tmp_path / "source").write_bytes(content)
        files.put(root.child("folder/file"), b"before")
        files.put(root.child("folder/file"), tmp_path / "source")
        assert [entry.path for entry in files.walk(root)] == ["folder/file"]
        assert b"".join(files.pieces(root.child("folder/file"))) == content
        assert files.sha256(root.child("folder/file")) == hashlib.sha256(content).hexdigest()

    @pytest.mark.usefixtures("integration")
    def test_killed_writer_leaves_only_whole_files(self, root: Root) -> None:
        program = (
            "import sys; from storage import files; from storage.uri import URI; root = URI(sys.argv[1])\n"
            "for n in range(10**6):\n"
            "    files.put(root.child('replaced'), b'%d' % (n % 10) * 500_000)\n"
            "    files.put(root.child(f'created/{n}'), b'%d' % (n % 10) * 500_000, mode='create')\n"
            "    print(n, flush=True)\n"
        )
        command = [sys.executable, "-c", program, root]
        with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=Path(files.__file__).parents[1]) as writer:
            assert writer.stdout
            seen = [writer.stdout.readline() for _ in range(10)]
            writer.send_signal(signal.SIGKILL)
        assert seen[-1] == b"9\n"
        contents = [files.read(root.child(f"created/{name}")) for name in files.children(root.child("created"))]
        assert len(contents) >= 10
        assert all(content == content[:1] * 500_000 for content in [*contents, files.read(root.child("replaced"))])


class TestDisk:
    def test_file_in_the_way_of_a_folder_is_not_taken_for_an_earlier_create(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_bytes(b"")
        with pytest.raises(NotADirectoryError):
            files.put(URI(f"{tmp_path}/file/below"), b"", mode="create")

    def test_creator_whose_reply_is_lost_learns_that_the_file_is_its_own(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        link, uri = os.link, URI(f"{tmp_path}/file")

        def answer_twice(source: Path, target: URI) -> None:  # as NFS does
            link(source, target)
            raise FileExistsError

        monkeypatch.setattr(os, "link", answer_twice)
        files.put(uri, b"ours", mode="create")
        with pytest.raises(FileExistsError):
            files.put(uri, b"ours", mode="create")
        assert os.listdir(tmp_path) == ["file"]

    def test_walk_lists_links_to_folders_and_does_not_follow_them(self, tmp_path: Path) -> None:
        files.put(URI(f"{tmp_path}/elsewhere/file"), b"content", mode="create")
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "loop").symlink_to(tmp_path)
        (tmp_path / "folder" / "dangling").symlink_to(tmp_path / "nowhere")
        (tmp_path / "folder" / "file").symlink_to(tmp_path / "elsewhere" / "file")
        (tmp_path / "link").symlink_to(tmp_path / "folder")
        for folder in ("folder", "link"):
            entries = files.walk(URI(f"{tmp_path}/{folder}"))
            assert [entry.path for entry in entries] == ["dangling", "file", "loop"] and entries[1].size == 7


class TestS3:
    def test_walk_leaves_out_keys_that_no_uri_names(self, s3: Server) -> None:
        folder = URI(f"s3://{s3.bucket}/keys")
        files.put(folder.child("train/part"), b"", mode="create")
        for key in ("keys/train/", "keys/mark/"):
            s3.client().put_object(Bucket=s3.bucket, Key=key, Body=b"")
        assert [entry.path for entry in files.walk(folder)] == ["train/part"]
        assert files.walk(URI("s3://no-such-bucket/folder")) == []

    def test_version_that_was_listed_is_read_until_it_is_overwritten(self, s3: Server) -> None:
        uri = URI(f"s3://{s3.bucket}/version/a file")
        files.put(uri, b"first")
        (listed,) = files.walk(uri.parent)
        assert listed.etag and list(files.pieces(uri, etag=listed.etag)) == [b"first"]
        files.put(uri, b"other")
        with pytest.raises(Overwritten):
            list(files.pieces(uri, etag=listed.etag))
        files.remove(uri)
        with pytest.raises(FileNotFoundError, match="a file"):
            list(files.pieces(uri, etag=listed.etag))

    def test_file_that_is_overwritten_while_it_is_read_is_refused(self, s3: Server, small_pieces: None) -> None:
        uri = URI(f"s3://{s3.bucket}/overwritten")
        files.put(uri, b"first" * _PIECE)
        reading = files.pieces(uri)
        next(reading)
        files.put(uri, b"other" * _PIECE)
        with pytest.raises(OSError, match="it was overwritten while being read"):
            next(reading)

    def test_large_local_file_is_sent_in_parts(self, s3: Server, tmp_path: Path) -> None:
        uri, path, size = URI(f"s3://{s3.bucket}/in-parts"), tmp_path / "zeros", 33 * 2**20
        with path.open("wb") as file:
            file.truncate(size)
        files.put(uri, path)
        etag = files.entry(uri).etag
        assert etag and etag.endswith("-3"), "three parts of at most 16 MiB"
        assert files.entry(uri).size == size

    def test_file_system_for_pyarrow_reads_the_configuration_that_all_else_reads(
        self, s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in s3.environment():
            monkeypatch.delenv(name)
        for name, value in s3.configured(tmp_path).items():
            monkeypatch.setenv(name, value)
        access.check_writable(Root(f"s3://{s3.bucket}/root"))
        place = f"{s3.bucket}/root/per%20cent ä"
        with pickle.loads(pickle.dumps(s3_verbs.for_pyarrow())).open_output_stream(place) as file:
            file.write(b"content")
        assert files.read(URI(f"s3://{place}")) == b"content"


class TestAccess:
    def test_readable_and_writable_root_is_accepted_and_stays_as_it_was(self, root: Root) -> None:
        access.check_writable(root)
        assert files.children(root) == []
        files.put(root.child("folder/file"), b"")
        access.check_readable(root)
        with pytest.raises(FileNotFoundError, match="fold"):
            access.check_readable(root.child("fold"))
        assert [entry.path for entry in files.walk(root)] == ["folder/file"]

    def test_storage_that_overwrites_is_refused(self, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
        put = files.put
        monkeypatch.setattr(files, "put", lambda uri, content, mode: put(uri, content))
        with pytest.raises(ValueError, match="--storage: .*creating an existing file again"):
            access.check_writable(root)

    @CHECKS
    def test_folder_that_cannot_be_used_is_refused(self, check: Check) -> None:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "file").touch()
            with pytest.raises(ValueError, match="cannot .*/file: (Not a|File exists).*; choose another folder"):
                check(Root(f"{folder}/file"))
            os.chmod(folder, 0o000)
            with without_privileges(), pytest.raises(ValueError, match="--storage: cannot .*: Permission denied"):
                check(Root(folder))

    @pytest.mark.parametrize(
        ("call", "number", "feature"), [("link", errno.EPERM, "hard links"), ("fsync", errno.EINVAL, "fsync")]
    )
    def test_file_system_is_refused_by_what_it_lacks_and_nothing_stays(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int, feature: str
    ) -> None:
        def refuse(*paths: Path | int) -> None:
            raise OSError(number, os.strerror(number), *([paths[0], None, paths[1]] if call == "link" else []))

        monkeypatch.setattr(os, "chmod", refuse)
        access.check_writable(Root(str(tmp_path)))
        monkeypatch.setattr(os, call, refuse)
        with pytest.raises(ValueError, match=f"write to {tmp_path}: its file system lacks {feature} .*; choose anoth"):
            access.check_writable(Root(str(tmp_path)))
        assert list(tmp_path.iterdir()) == []

    def test_folder_below_a_disk_that_is_not_mounted_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="--storage: cannot write to .*/nas/results: the folder above it does not"):
            access.check_writable(Root(f"{tmp_path}/nas/results"))
        assert list(tmp_path.iterdir()) == []

    @CHECKS
    @pytest.mark.parametrize(
        ("variable", "value", "problem"),
        [
            ("", "", r"/x: its bucket does not exist"),
            ("AWS_SECRET_ACCESS_KEY", "hidden", r"SignatureDoesNotMatch\); check .*AWS_\*"),
            ("AWS_ENDPOINT_URL", "http://127.0.0.1:{port}", "AWS_ENDPOINT_URL"),
            ("AWS_ENDPOINT_URL", "http://me:hidden@127.0.0.1:{port}", "AWS_ENDPOINT_URL"),
            ("AWS_ENDPOINT_URL", "nonsense", "AWS_ENDPOINT_URL"),
        ],
    )
    @pytest.mark.timeout(10)
    def test_s3_that_cannot_be_used_is_refused_in_one_line_without_secrets(
        self, s3: Server, monkeypatch: pytest.MonkeyPatch, check: Check, variable: str, value: str, problem: str
    ) -> None:
        with socket.socket() as bound:  # not listening: connections are refused
            bound.bind(("127.0.0.1", 0))
            if variable:
                monkeypatch.setenv(variable, value.format(port=bound.getsockname()[1]))
            with pytest.raises(ValueError, match=f"^--storage: [^\n]*{problem}[^\n]*$") as caught:
                check(Root(f"s3://{s3.bucket if variable else 'no-such-bucket'}/x"))
        assert "hidden" not in str(caught.value)


@contextlib.contextmanager
def without_privileges() -> Iterator[None]:
    """Drop root's privileges in the block, so that permission bits apply."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)
