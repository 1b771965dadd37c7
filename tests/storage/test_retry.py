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
from tests.faults.proxy import Proxy
from tests.s3 import Server


@pytest.fixture
def s3_proxy(s3: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """The session's S3 server behind a proxy that every client made from now on talks to."""
    with proxy.serve(s3.endpoint) as s3_proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", s3_proxy.endpoint)
        yield s3_proxy


@pytest.fixture
def file(s3: Server, request: pytest.FixtureRequest) -> URI:
    return URI(f"s3://{s3.bucket}/retry/{abs(hash(request.node.name))}/file")


@pytest.mark.parametrize("fault", ["503", "truncated", "slow"])
def test_read_is_retried_after_transient_errors(s3_proxy: Proxy, file: URI, fault: proxy.Fault) -> None:
    files.put(file, b"content" * 1000)
    s3_proxy.inject(fault, "GET", part="/file", times=2)
    assert files.read(file) == b"content" * 1000
    assert len(s3_proxy.injected) == (1 if fault == "slow" else 2)


@pytest.mark.parametrize("fault", ["500", "reset", "lost", "conflict"])
def test_write_is_retried_and_a_disturbed_creator_learns_that_the_file_is_its_own(
    s3_proxy: Proxy, file: URI, fault: proxy.Fault
) -> None:
    for mode, content in (("create", b"ours"), ("replace", b"newer")):
        s3_proxy.inject(fault, "PUT", part="/file", times=2)
        files.put(file, content, mode=mode)  # type: ignore[arg-type]
        assert files.read(file) == content


def test_creator_whose_reply_was_lost_is_not_taken_for_another_that_was_first(s3_proxy: Proxy, file: URI) -> None:
    files.put(file, b"theirs", mode="create")
    s3_proxy.inject("lost", "PUT", part="/file")
    with pytest.raises(FileExistsError):
        files.put(file, b"ours", mode="create")
    assert files.read(file) == b"theirs"


def test_listing_sizes_and_removal_are_retried_too(s3_proxy: Proxy, file: URI) -> None:
    files.put(file, b"content")
    s3_proxy.inject("503", "GET", "HEAD", "DELETE")
    assert files.children(file.parent) == ["file"]
    assert files.entry(file).size == 7
    files.remove(file.parent)
    assert len(s3_proxy.injected) == 3
    assert files.walk(file.parent) == []


def test_refused_access_is_raised_at_once_and_a_persistent_error_after_one_more_try(
    s3_proxy: Proxy, file: URI, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3_verbs, "PATIENCE_S", 0.0)
    s3_proxy.inject("403", "GET", part="/file", times=9)
    with pytest.raises(PermissionError):
        files.read(file)
    assert len(s3_proxy.injected) == 1
    s3_proxy.inject("503", "GET", part="/file", times=1000)
    with pytest.raises(ConnectionError, match="failing for 0 s, last error: .*spoilt.*; check the server at AWS_ENDPO"):
        files.read(file)
    assert len(s3_proxy.injected) == 3, "tried once again, however little time there is"


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
    s3_proxy: Proxy, file: URI, fault: proxy.Fault, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weights").write_bytes(b"content")
    monkeypatch.setattr(s3_verbs, "PATIENCE_S", 0.0)
    s3_proxy.inject(fault, "GET", "HEAD", "PUT", times=9)
    for request in (lambda: files.exists(file), lambda: files.put(file, tmp_path / "weights")):
        with pytest.raises(OSError, match=message) as error:
            request()
        assert isinstance(error.value, PermissionError) == (fault == "403"), "a wrong clock is no lack of permission"
    with pytest.raises(ValueError, match=f"--storage: cannot write to .*: .*{message}"):
        access.check_writable(Root(file))


def test_expired_keys_are_read_again(
    s3: Server, s3_proxy: Proxy, file: URI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.put(file, b"content")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    for name, value in dataclasses.replace(s3, access_key="old").configured(tmp_path).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(PermissionError, match="InvalidAccessKeyId"):
        files.exists(file)
    s3.configured(tmp_path)
    s3_proxy.inject("expired", "GET", "HEAD")
    assert files.exists(file) and len(s3_proxy.injected) == 2


def test_listing_that_repeats_itself_is_refused(s3_proxy: Proxy, file: URI) -> None:
    s3_proxy.inject("endless", "GET", times=99)
    with pytest.raises(OSError, match="repeats a page of its listing"):
        files.walk(file.parent)


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
