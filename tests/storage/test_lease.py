"""A lease has one holder at a time, ends on time, and a late holder does no harm."""

import contextlib
import datetime
import json
import logging
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import files, lease
from storage.lease import Held
from storage.lease_records import Record
from storage.manifest import Damaged
from storage.uri import URI, CheckpointURI, Root

LONG_S = 600.0
"""A lease that outlasts every test."""
LIMIT_S = 60
"""How long a condition may take to come true."""


@pytest.fixture
def target(root: Root) -> CheckpointURI:
    """What is worked on."""
    return CheckpointURI(root.child("checkpoints/mnist-0123456789ab"))


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits looks again soon."""
    monkeypatch.setattr(lease, "_POLL_S", 0.02)


class TestTaking:
    def test_second_taker_is_refused_until_the_first_releases_and_only_the_newest_file_stays(
        self, root: Root, target: URI
    ) -> None:
        for name in ("README.md", "000009", "9.json", "000009.json.bak"):
            files.put(root.child(f"leases/{target.name}/{name}"), b"")
        first = lease.take(root, target, owner="job-1", ttl_s=LONG_S)
        with pytest.raises(Held, match=rf"{target} is leased by job-1 on \S+ until at least 20\S+ \S+ UTC") as caught:
            lease.take(root, target, owner="job-2")
        assert caught.value.holder == lease.holder(root, target)
        left = caught.value.holder.expires - datetime.datetime.now(datetime.UTC)
        assert LONG_S - LIMIT_S < left.total_seconds() <= LONG_S
        first.release()
        assert lease.holder(root, target) is None
        assert (lease.take(root, target, owner="job-2").generation, first.lost) == (2, False)
        assert "000001.json" not in files.children(root.child(f"leases/{target.name}"))

    def test_held_lease_is_renewed_again_and_again(self, root: Root, target: URI) -> None:
        with lease.held(root, target, owner="job-1", ttl_s=1.0):
            for _ in range(2):
                before = expires(root, target)
                eventually(lambda: before < expires(root, target))  # noqa: B023 - called at once

    def test_lease_that_was_renewed_too_late_tells_that_it_has_lapsed(self, root: Root, target: URI) -> None:
        late, on_time = (lease.take(root, URI(f"{target}-{ttl_s}"), owner="job", ttl_s=ttl_s) for ttl_s in (0.2, 600))
        eventually(lambda: late.has_lapsed())
        assert late.renew() and on_time.renew()
        assert (late.has_lapsed(), on_time.has_lapsed()) == (True, False)

    def test_lease_that_lapsed_while_it_was_written_tells_so(
        self, root: Root, target: URI, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        held = lease.take(root, target, owner="job", ttl_s=0.3)
        before_the_next(monkeypatch, "put", lambda: time.sleep(0.6))
        assert held.renew()
        assert held.has_lapsed()

    def test_file_that_cannot_be_understood_is_refused_by_name(self, root: Root, target: URI) -> None:
        for content in (b"", b"\xff", b'{"generation": 7}'):
            files.put(place(root, target, 7), content)
            with pytest.raises(Damaged, match="000007.json cannot be read; delete it when no run is active below"):
                lease.take(root, target, owner="job-1")


class TestInterleavings:
    """What two do at once, in the orders in which it could go wrong."""

    def test_slow_taker_of_a_number_that_was_used_and_removed_is_refused(
        self, root: Root, target: URI, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def others() -> None:
            lease.take(root, target, owner="job-2", ttl_s=LONG_S).release()
            lease.take(root, target, owner="job-3", ttl_s=LONG_S)

        before_the_next(monkeypatch, "put", others)
        with pytest.raises(Held, match="job-3"):
            lease.take(root, target, owner="job-1", ttl_s=LONG_S)
        assert owner(root, target) == "job-3"

    @pytest.mark.parametrize("write", ["renew", "release"])
    def test_write_that_comes_after_the_takeover_changes_nothing(
        self, root: Root, target: URI, monkeypatch: pytest.MonkeyPatch, write: str
    ) -> None:
        first = lease.take(root, target, owner="job-1", ttl_s=LONG_S)

        def other() -> None:
            edit(root, target, 1, expires="2020-01-01T00:00:00Z")
            lease.take(root, target, owner="job-2", ttl_s=LONG_S)

        before_the_next(monkeypatch, "put", other)
        getattr(first, write)()
        assert owner(root, target) == "job-2"
        if write == "renew":
            assert (first.renew(), first.lost) == (False, True)
        edit(root, target, 2, released=True)
        assert lease.take(root, target, owner="job-3").generation == 3


class TestRenewal:
    def test_holder_whose_file_is_gone_finds_it_lost(self, root: Root, target: URI) -> None:
        mine = lease.take(root, target, owner="job-1", ttl_s=LONG_S)
        files.remove(root.child("leases"))
        assert (mine.renew(), mine.lost) == (False, True)
        assert lease.holder(root, target) is None

    def test_fault_of_the_storage_does_not_lose_it_and_is_told_once(
        self, root: Root, target: URI, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        from botocore.exceptions import EndpointConnectionError

        faults: list[Exception] = [OSError(5, "broken"), EndpointConnectionError(endpoint_url="http://key@host")]
        put = files.put

        def fail_at_first(uri: URI, content: bytes) -> None:
            if faults:
                raise faults.pop(0)
            put(uri, content)

        with lease.held(root, target, owner="job-1", ttl_s=1.0) as mine:
            monkeypatch.setattr(files, "put", fail_at_first)
            eventually(lambda: not faults)
            before = expires(root, target)
            eventually(lambda: before < expires(root, target))
            assert mine and not mine.lost
        assert [record.levelno for record in caplog.records if record.name == lease.__name__] == [logging.WARNING]
        assert "could not be renewed; retrying every 0.25 s ([Errno 5] broken)" in caplog.text


class TestDeadOwner:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Root:
        return Root(f"{tmp_path}/root")

    def test_frozen_holder_that_thaws_finds_it_lost(self, root: Root, target: URI) -> None:
        program = (
            "with lease.held(root, target, owner='frozen', ttl_s=0.5) as mine:\n"
            "    print('held', flush=True)\n"
            "    while not mine.lost:\n"
            "        time.sleep(0.01)\n"
            "print('lost', flush=True)\n"
        )
        with running(program, root, target) as frozen:
            assert frozen.stdout and frozen.stdout.readline() == "held\n"
            frozen.send_signal(signal.SIGSTOP)
            eventually(lambda: lease.holder(root, target) is None)
            mine = lease.take(root, target, owner="job-2", ttl_s=LONG_S)
            before = files.read(place(root, target, mine.generation))
            frozen.send_signal(signal.SIGCONT)
            assert frozen.stdout.readline() == "lost\n"
            assert frozen.wait(LIMIT_S) == 0
        assert files.read(place(root, target, mine.generation)) == before
        assert mine.renew()

    def test_killed_holder_is_replaced_at_once(self, root: Root, target: URI) -> None:
        program = (
            f"lease.take(root, target, owner='killed', ttl_s={LONG_S}); print('held', flush=True); time.sleep(600)"
        )
        with running(program, root, target) as killed:
            assert killed.stdout and killed.stdout.readline() == "held\n"
            assert owner(root, target) == "killed"
            killed.kill()
            eventually(lambda: lease.holder(root, target) is None)  # not reaped yet
            killed.wait(LIMIT_S)
        assert lease.holder(root, target) is None
        assert lease.take(root, target, owner="job-2").generation == 2

    def test_process_that_got_the_number_of_the_holder_holds_nothing(self, root: Root, target: URI) -> None:
        lease.take(root, target, owner="job-1", ttl_s=LONG_S)
        edit_process(root, target, started=1)
        assert lease.holder(root, target) is None

    @pytest.mark.parametrize(
        "changes",
        [{"host": "elsewhere"}, {"boot": "another"}, {"pid_namespace": "pid:[1]"}, {"started": None}],
        ids=lambda changes: next(iter(changes)),
    )
    def test_pid_of_a_holder_elsewhere_or_unknown_is_not_checked(
        self, root: Root, target: URI, changes: dict[str, Any]
    ) -> None:
        lease.take(root, target, owner="job-1", ttl_s=LONG_S)
        with subprocess.Popen(["true"]) as ended:
            ended.wait(LIMIT_S)
        edit_process(root, target, pid=ended.pid)
        assert lease.holder(root, target) is None
        edit_process(root, target, **changes)
        assert owner(root, target) == "job-1"


class TestHeld:
    def test_lease_is_held_within_the_block_and_free_after_it_even_if_it_fails(self, root: Root, target: URI) -> None:
        with pytest.raises(ValueError, match="of the work"), lease.held(root, target, owner="job-1") as mine:
            assert mine and mine.owner == owner(root, target) == "job-1"
            assert renewers(target)
            raise ValueError("of the work")
        assert lease.holder(root, target) is None
        eventually(lambda: not renewers(target))

    def test_release_that_fails_does_not_fail_the_work(
        self, root: Root, target: URI, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def fail(uri: URI, content: bytes) -> None:
            raise OSError(5, "broken")

        with lease.held(root, target, owner="job-1", ttl_s=LONG_S):
            monkeypatch.setattr(files, "put", fail)
        assert "could not be released; it will expire ([Errno 5] broken)" in caplog.text

    def test_waiting_ends_when_the_other_releases(self, root: Root, target: URI) -> None:
        first = lease.take(root, target, owner="job-1", ttl_s=LONG_S)
        told: list[Record] = []

        def release_later(holder: Record) -> None:
            told.append(holder)
            threading.Timer(0.2, first.release).start()

        with lease.held(root, target, owner="job-2", on_wait=release_later) as mine:
            assert mine and mine.owner == owner(root, target) == "job-2"
        assert [holder.owner for holder in told] == ["job-1"]

    def test_result_committed_just_before_the_release_is_found(self, root: Root, target: URI) -> None:
        first = lease.take(root, target, owner="job-1", ttl_s=LONG_S)
        result = target.child("_manifest.json")

        def commit_and_release(holder: Record) -> None:
            files.put(result, b"")
            first.release()

        with lease.held(
            root, target, owner="job-2", is_done=lambda: files.exists(result), on_wait=commit_and_release
        ) as mine:
            assert mine is None
            assert lease.holder(root, target) is None


def place(root: Root, target: URI, generation: int) -> URI:
    return root.child(f"leases/{target.name}/{generation:06d}.json")


def edit(root: Root, target: URI, generation: int, **changes: object) -> None:
    """Change what the file of a lease says."""
    uri = place(root, target, generation)
    files.put(uri, json.dumps(json.loads(files.read(uri)) | changes).encode())


def edit_process(root: Root, target: URI, **changes: object) -> None:
    """Change what the first lease says of its process."""
    edit(root, target, 1, process=json.loads(files.read(place(root, target, 1)))["process"] | changes)


def owner(root: Root, target: URI) -> str | None:
    found = lease.holder(root, target)
    return found.owner if found else None


def expires(root: Root, target: URI) -> str:
    return str(json.loads(files.read(place(root, target, 1)))["expires"])


def renewers(target: URI) -> list[threading.Thread]:
    """The threads that renew a lease on `target`."""
    return [thread for thread in threading.enumerate() if thread.name == f"lease-{target.name}"]


def before_the_next(monkeypatch: pytest.MonkeyPatch, verb: str, action: Callable[[], None]) -> None:
    """Let `action` happen just before `files` does the next `verb`, as if its caller had been slow there."""
    real = getattr(files, verb)

    def slow(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(files, verb, real)
        action()
        return real(*arguments, **options)

    monkeypatch.setattr(files, verb, slow)


def eventually(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < deadline, "it did not come true"
        time.sleep(0.01)


@contextlib.contextmanager
def running(program: str, root: Root, target: URI) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `program`, killed at the end."""
    head = "import sys, time; from storage import lease; from storage.uri import URI, Root\n"
    names = "root, target = Root(sys.argv[1]), URI(sys.argv[2])\n"
    command = [sys.executable, "-c", head + names + program, root, target]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(files.__file__).parents[1]) as process:
        try:
            yield process
        finally:
            process.kill()
