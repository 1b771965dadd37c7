"""Garbage collection sees what live runs use, and neither misses the other."""

import datetime
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import files, in_use
from storage.in_use import Use, UseRecord
from storage.manifest import Damaged
from storage.process import Process
from storage.uri import URI, Root
from tests.runs import CHECKOUT, await_that

_LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_LATER = datetime.datetime(2200, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture
def other() -> Iterator["subprocess.Popen[bytes]"]:
    """Another process of this machine."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    yield process
    process.kill()
    process.wait()


def of(process: Process, *, expires: datetime.datetime) -> UseRecord:
    """A record of a run in `process`."""
    return UseRecord(owner="a run", process=process, expires=expires, uses=["checkpoints/a-0123456789ab"])


def as_process(pid: int) -> Process:
    """A running process of this machine."""
    started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return Process.current().model_copy(update={"pid": pid, "started": started})


def test_what_a_run_uses_is_known_until_it_ends(root: Root) -> None:
    first, second = root.child("checkpoints/a-0123456789ab"), root.child("predictions/b-0123456789ab")
    with in_use.using(root, [first], owner="a run") as use:
        assert in_use.used(root) == {first}
        use.add([second, URI("/elsewhere/c-0123456789ab")])
        assert in_use.used(root) == {first, second}
        with in_use.using(root, [second], owner="another"):
            assert in_use.used(root) == {first, second}
        assert in_use.used(root) == {first, second}
    assert in_use.used(root) == set()
    assert files.walk(root) == []


def test_what_a_run_uses_of_another_root_is_known_there(root: Root) -> None:
    here, elsewhere = Root(root.child("here")), Root(root.child("elsewhere"))
    mine, others = here.child("checkpoints/a-0123456789ab"), elsewhere.child("datasets/raw/b-0123456789ab")
    with in_use.using(here, [mine, others], owner="a run"):
        assert (in_use.used(here), in_use.used(elsewhere)) == ({mine}, {others})
    assert files.walk(root) == []


def test_root_that_lets_no_record_be_written_is_told_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "leases").write_text("in its way")
    here = Root(f"{tmp_path}/here")
    uris = [here.child("checkpoints/a-0123456789ab"), URI(f"{tmp_path}/datasets/raw/b-0123456789ab")]
    with in_use.using(here, uris, owner="a run"):
        assert in_use.used(here) == {uris[0]}
    assert f"results used from {tmp_path} are not protected from gc there" in caplog.text


def test_what_a_stopped_run_uses_is_known_even_when_its_record_has_expired(
    other: "subprocess.Popen[bytes]",
) -> None:
    record = of(as_process(other.pid), expires=_LONG_AGO)
    other.send_signal(signal.SIGSTOP)
    assert record.is_live()
    other.kill()
    other.wait()
    assert not record.is_live()


@pytest.mark.parametrize(("expires", "counts"), [(_LATER, True), (_LONG_AGO, False)])
def test_of_a_run_on_another_host_its_record_tells_until_it_expires(expires: datetime.datetime, counts: bool) -> None:
    elsewhere = Process.current().model_copy(update={"host": "another"})
    assert of(elsewhere, expires=expires).is_live() is counts


def test_record_of_a_killed_run_counts_no_more_and_goes_with_the_next_one(
    root: Root, other: "subprocess.Popen[bytes]"
) -> None:
    record = of(as_process(other.pid), expires=_LATER)
    files.create(root.child("leases/in-use/dead.json"), record.model_dump_json().encode())
    assert in_use.used(root) == {root.child("checkpoints/a-0123456789ab")}
    other.kill()
    other.wait()
    assert in_use.used(root) == set()
    with in_use.using(root, [root.child("checkpoints/x-0123456789ab")], owner="the next"):
        assert not files.exists(root.child("leases/in-use/dead.json"))


def test_record_that_cannot_be_read_stops_whoever_asks(root: Root) -> None:
    files.create(root.child("leases/in-use/a.json"), b"garbage")
    with pytest.raises(Damaged, match="leases/in-use/a.json cannot be read; delete it when no run is active"):
        in_use.used(root)


def test_record_that_somebody_removed_is_written_again(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_use, "_EVERY_S", 0.05)
    with in_use.using(root, [root.child("checkpoints/x-0123456789ab")], owner="a run"):
        files.remove(root.child("leases"))
        await_that(lambda: in_use.used(root), limit_s=20)
    assert in_use.used(root) == set()


@pytest.mark.timeout(60)
def test_run_that_begins_while_somebody_collects_waits_for_that_and_is_seen_by_the_next(root: Root) -> None:
    use, uri = Use(root, owner="a run"), root.child("checkpoints/a-0123456789ab")
    begun = threading.Event()

    def begin() -> None:
        use.add([uri])
        begun.set()

    with in_use.collecting(root):
        assert in_use.used(root) == set()
        threading.Thread(target=begin, daemon=True).start()
        await_that(lambda: in_use.used(root), limit_s=20)
        assert not begun.wait(1.0), "it may already have found what is being removed"
    with in_use.collecting(root):
        assert begun.wait(20), "it waits for a collector that has seen it"
        assert in_use.used(root) == {uri}


@pytest.mark.timeout(60)
def test_a_run_is_not_held_up_by_a_collector_that_was_killed(root: Root) -> None:
    program = "import sys, time; from storage import in_use; from storage.uri import Root\n"
    program += "with in_use.collecting(Root(sys.argv[1])): print('at work', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program, root], cwd=CHECKOUT, stdout=subprocess.PIPE) as collector:
        assert collector.stdout and collector.stdout.readline() == b"at work\n"
        collector.kill()
    with in_use.using(root, [root.child("checkpoints/x-0123456789ab")], owner="a run"):
        pass
