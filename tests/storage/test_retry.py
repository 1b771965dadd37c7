"""Errors of a real S3 server: only transient ones are retried. And a full disk."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import error_policy, files
from storage import s3 as s3_verbs
from storage.uri import URI
from tests.faults import proxy
from tests.faults.proxy import Proxy, RequestFault
from tests.s3 import Server

PASSING: list[proxy.Fault] = ["500", "503", "reset", "lost", "slow"]


@pytest.fixture
def spoiling(s3: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The session's S3 server behind a proxy that every client made from now on talks to."""
    with proxy.serve(s3.endpoint) as spoiling:
        monkeypatch.setenv("AWS_ENDPOINT_URL", spoiling.endpoint)
        yield spoiling


@pytest.fixture
def folder(s3: Server, request: pytest.FixtureRequest) -> URI:
    return URI(f"s3://{s3.bucket}/retry/{abs(hash(request.node.name))}")


@pytest.mark.parametrize("fault", [*PASSING, "truncated"])
def test_read_is_retried_after_transient_errors(spoiling: Proxy, folder: URI, fault: proxy.Fault) -> None:
    files.put(folder.child("file"), b"content" * 1000)
    spoiling.pending = [RequestFault(fault=fault, method="GET", part="/file", times=2)]
    assert files.read(folder.child("file")) == b"content" * 1000
    assert len(spoiling.injected) == (1 if fault == "slow" else 2)


@pytest.mark.parametrize("fault", PASSING)
def test_replace_is_retried_after_transient_errors(spoiling: Proxy, folder: URI, fault: proxy.Fault) -> None:
    spoiling.pending = [RequestFault(fault=fault, method="PUT", part="/file", times=2)]
    files.put(folder.child("file"), b"content")
    assert files.read(folder.child("file")) == b"content"


@pytest.mark.parametrize("fault", PASSING)
def test_file_whose_creation_was_disturbed_is_there_once_and_its_creator_is_told_so(
    spoiling: Proxy, folder: URI, fault: proxy.Fault
) -> None:
    spoiling.pending = [RequestFault(fault=fault, method="PUT", part="/file", times=2)]
    files.put(folder.child("file"), b"ours", mode="create")
    assert files.read(folder.child("file")) == b"ours"


def test_creator_whose_reply_was_lost_is_not_taken_for_another_that_was_first(spoiling: Proxy, folder: URI) -> None:
    files.put(folder.child("file"), b"theirs", mode="create")
    spoiling.pending = [RequestFault(fault="lost", method="PUT", part="/file")]
    with pytest.raises(FileExistsError):
        files.put(folder.child("file"), b"ours", mode="create")
    assert files.read(folder.child("file")) == b"theirs"


def test_listing_sizes_and_removal_are_retried_too(spoiling: Proxy, folder: URI) -> None:
    files.put(folder.child("file"), b"content")
    spoiling.pending = [
        RequestFault(fault="503", method=method, part="", times=1) for method in ("GET", "HEAD", "POST")
    ]
    assert files.children(folder) == ["file"]
    assert files.entry(folder.child("file")).size == 7
    files.remove(folder)
    assert len(spoiling.injected) == 3
    assert files.walk(folder) == []


def test_refused_access_is_told_at_once(spoiling: Proxy, folder: URI) -> None:
    spoiling.pending = [RequestFault(fault="403", method="GET", part="/file", times=9)]
    with pytest.raises(PermissionError):
        files.read(folder.child("file"))
    assert len(spoiling.injected) == 1


def test_persistent_error_is_raised_after_one_more_try(
    spoiling: Proxy, folder: URI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_verbs, "PATIENCE_S", 0.0)
    spoiling.pending = [RequestFault(fault="503", method="GET", part="/file", times=1000)]
    with pytest.raises(
        ConnectionError, match="failing for 0 s, last error: .*spoilt.*; check the server at AWS_ENDPOINT_URL"
    ):
        files.read(folder.child("file"))
    assert len(spoiling.injected) == 2, "tried once again, however little time there is"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_full_disk_is_told_and_the_old_version_stays(tmp_path: Path) -> None:
    import subprocess

    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", tmp_path], check=True)
    try:
        files.put(URI(f"{tmp_path}/file"), b"old")
        for mode, name in (("replace", "file"), ("create", "new")):
            with pytest.raises(error_policy.DiskFull, match="is full: 2.0 MB are needed"):
                files.put(URI(f"{tmp_path}/{name}"), bytes(2_000_000), mode=mode)  # type: ignore[arg-type]
        assert files.read(URI(f"{tmp_path}/file")) == b"old"
        assert [entry.path for entry in files.walk(URI(str(tmp_path)))] == ["file"]
        with pytest.raises(error_policy.DiskFull):
            files.check_space(URI(f"{tmp_path}/not/yet/there"), needed=2_000_000)
    finally:
        subprocess.run(["umount", tmp_path], check=True)
