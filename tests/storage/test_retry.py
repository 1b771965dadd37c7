"""Errors of a real S3 server: only transient ones are retried. And a full disk."""

import dataclasses
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import access, error_policy, files
from storage import s3 as s3_verbs
from storage.uri import URI, Root
from tests.faults import proxy
from tests.faults.proxy import Proxy, RequestFault
from tests.s3 import Server


@pytest.fixture
def spoiling(s3: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The session's S3 server behind a proxy that every client made from now on talks to."""
    with proxy.serve(s3.endpoint) as spoiling:
        monkeypatch.setenv("AWS_ENDPOINT_URL", spoiling.endpoint)
        yield spoiling


@pytest.fixture
def file(s3: Server, request: pytest.FixtureRequest) -> URI:
    return URI(f"s3://{s3.bucket}/retry/{abs(hash(request.node.name))}/file")


@pytest.mark.parametrize("fault", ["503", "truncated", "slow"])
def test_read_is_retried_after_transient_errors(spoiling: Proxy, file: URI, fault: proxy.Fault) -> None:
    files.put(file, b"content" * 1000)
    spoiling.pending = [RequestFault(fault=fault, method="GET", part="/file", times=2)]
    assert files.read(file) == b"content" * 1000
    assert len(spoiling.injected) == (1 if fault == "slow" else 2)


@pytest.mark.parametrize("fault", ["500", "reset", "lost", "conflict"])
def test_write_is_retried_and_a_disturbed_creator_learns_that_the_file_is_its_own(
    spoiling: Proxy, file: URI, fault: proxy.Fault
) -> None:
    for mode, content in (("create", b"ours"), ("replace", b"newer")):
        spoiling.pending = [RequestFault(fault=fault, method="PUT", part="/file", times=2)]
        files.put(file, content, mode=mode)  # type: ignore[arg-type]
        assert files.read(file) == content


def test_creator_whose_reply_was_lost_is_not_taken_for_another_that_was_first(spoiling: Proxy, file: URI) -> None:
    files.put(file, b"theirs", mode="create")
    spoiling.pending = [RequestFault(fault="lost", method="PUT", part="/file")]
    with pytest.raises(FileExistsError):
        files.put(file, b"ours", mode="create")
    assert files.read(file) == b"theirs"


def test_listing_sizes_and_removal_are_retried_too(spoiling: Proxy, file: URI) -> None:
    files.put(file, b"content")
    spoiling.pending = [
        RequestFault(fault="503", method=method, part="", times=1) for method in ("GET", "HEAD", "POST")
    ]
    assert files.children(file.parent) == ["file"]
    assert files.entry(file).size == 7
    files.remove(file.parent)
    assert len(spoiling.injected) == 3
    assert files.walk(file.parent) == []


def test_refused_access_is_raised_at_once_and_a_persistent_error_after_one_more_try(
    spoiling: Proxy, file: URI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_verbs, "PATIENCE_S", 0.0)
    spoiling.pending = [RequestFault(fault="403", method="GET", part="/file", times=9)]
    with pytest.raises(PermissionError):
        files.read(file)
    assert len(spoiling.injected) == 1
    spoiling.pending = [RequestFault(fault="503", method="GET", part="/file", times=1000)]
    with pytest.raises(ConnectionError, match="failing for 0 s, last error: .*spoilt.*; check the server at AWS_ENDPO"):
        files.read(file)
    assert len(spoiling.injected) == 3, "tried once again, however little time there is"


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("403", r"spoilt: 403 \(AccessDenied\); check AWS_ENDPOINT_URL"),
        ("skew", r"spoilt: skew \(RequestTimeTooSkewed\); set the clock of this machine"),
        ("expired", r"spoilt: expired \(ExpiredToken\); renew the temporary keys"),
        ("checksum", r"\(InvalidArgument\); try AWS_REQUEST_CHECKSUM_CALCULATION=when_required"),
    ],
)
def test_refusal_has_the_words_of_the_server_and_its_own_next_step(
    spoiling: Proxy, file: URI, fault: proxy.Fault, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(b"content")
    monkeypatch.setattr(s3_verbs, "PATIENCE_S", 0.0)
    spoiling.pending = [RequestFault(fault=fault, method=method, part="", times=9) for method in ("GET", "HEAD", "PUT")]
    for request in (lambda: files.exists(file), lambda: files.put(file, tmp_path / "weights")):
        with pytest.raises(OSError, match=message) as error:
            request()
        assert isinstance(error.value, PermissionError) == (fault == "403"), "a wrong clock is no lack of permission"
    with pytest.raises(ValueError, match=f"--storage: cannot write to .*: .*{message}"):
        access.check_writable(Root(file))


def test_expired_keys_are_read_again(
    s3: Server, spoiling: Proxy, file: URI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put(file, b"content")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name, value in dataclasses.replace(s3, access_key="old").configured(tmp_path).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PermissionError, match="InvalidAccessKeyId"):
        files.exists(file)
    s3.configured(tmp_path)
    spoiling.pending = [RequestFault(fault="expired", method=method, part="") for method in ("GET", "HEAD")]
    assert files.exists(file) and len(spoiling.injected) == 2


def test_listing_that_repeats_itself_is_refused(spoiling: Proxy, file: URI) -> None:
    spoiling.pending = [RequestFault(fault="endless", method="GET", part="", times=99)]
    with pytest.raises(OSError, match="repeats a page of its listing"):
        files.walk(file.parent)


def test_more_files_than_one_request_removes_are_removed_even_where_only_one_by_one(spoiling: Proxy, file: URI) -> None:
    for n in range(7):
        files.put(file.child(str(n)), b"")
    spoiling.pending = [RequestFault(fault="unknown", method="POST", part="", times=2)]
    s3_verbs.remove(file, keys_per_request=2)
    assert len(spoiling.injected) == 2 and spoiling.requests["POST"] == 4 and files.walk(file) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small file system")
def test_full_disk_is_an_error_and_the_old_version_stays(tmp_path: Path) -> None:
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
