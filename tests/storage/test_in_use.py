"""Garbage collection sees what live runs use, and neither misses the other."""

import json
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from storage import files, in_use, lease_records
from storage.uri import URI, Root
from tests.runs import CHECKOUT, await_that


@pytest.fixture
def on_disk(tmp_path: Path) -> Root:
    return Root(f"{tmp_path}/root")


def test_what_a_run_uses_is_known_below_each_root_until_it_ends(root: Root) -> None:
    elsewhere = Root(root.child("elsewhere"))
    first, second = root.child("checkpoints/a-0123456789ab"), root.child("predictions/b-0123456789ab")
    others = elsewhere.child("datasets/raw/b-0123456789ab")
    with in_use.using(root, [first, others], owner="a run") as use:
        assert (in_use.used(root), in_use.used(elsewhere)) == ({first}, {others})
        use.add([second, URI("/elsewhere/c-0123456789ab")])
        assert in_use.used(root) == {first, second}
        with in_use.using(root, [second], owner="another"):
            assert in_use.used(root) == {first, second}
        assert in_use.used(root) == {first, second}
    assert not in_use.used(root) and not in_use.used(elsewhere)
    with in_use.using(root, [first], owner="the next"):
        assert in_use.used(root) == {first}
    assert lease_records.names(root) == ["_run-1", "_run-2"], "the leases of ended runs are taken again"


def test_run_whose_lease_was_taken_after_a_suspension_is_protected_again(root: Root) -> None:
    first, second = root.child("checkpoints/a-0123456789ab"), root.child("predictions/b-0123456789ab")
    place = root.child("leases/_run-1/000001.json")
    with in_use.using(root, [first], owner="a run") as use:
        expired = json.loads(files.read(place)) | {"expires": "2020-01-01T00:00:00Z"}
        files.put(place, json.dumps(expired).encode())
        with in_use.using(root, [], owner="another"):
            assert in_use.used(root) == set()
            use.add([second])
            assert in_use.used(root) == {first, second}
        assert in_use.used(root) == {first, second}
    assert in_use.used(root) == set()


def test_root_that_lets_no_record_be_written_is_told_and_the_run_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "leases").write_text("in its way")
    here = Root(f"{tmp_path}/here")
    uris = [here.child("checkpoints/a-0123456789ab"), URI(f"{tmp_path}/datasets/raw/b-0123456789ab")]
    with in_use.using(here, uris, owner="a run"):
        assert in_use.used(here) == {uris[0]}
    assert f"results used from {tmp_path} are not protected from gc there" in caplog.text


def test_what_a_killed_run_uses_is_free(on_disk: Root) -> None:
    root = on_disk
    program = "import sys, time; from storage import in_use; from storage.uri import Root; root = Root(sys.argv[1])\n"
    program += "with in_use.using(root, [root.child('checkpoints/a-0123456789ab')], owner='a run'):\n"
    program += "    print('at work', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program, root], cwd=CHECKOUT, stdout=subprocess.PIPE) as run:
        assert run.stdout and run.stdout.readline() == b"at work\n"
        assert in_use.used(root) == {root.child("checkpoints/a-0123456789ab")}
        run.kill()
    assert in_use.used(root) == set()


@pytest.mark.timeout(60)
def test_run_that_begins_while_somebody_collects_waits_for_that_and_is_seen_by_the_next(root: Root) -> None:
    uri, begun = root.child("checkpoints/a-0123456789ab"), threading.Event()

    def begin() -> None:
        with in_use.using(root, [uri], owner="a run"):
            begun.set()
            time.sleep(600)

    with in_use.collecting(root):
        assert in_use.used(root) == set()
        threading.Thread(target=begin, daemon=True).start()
        await_that(lambda: in_use.used(root), limit_s=20)
        assert not begun.wait(1.0), "it may already have found what is being removed"
    with in_use.collecting(root):
        assert begun.wait(20), "it waits for a collector that has seen it"
        assert in_use.used(root) == {uri}


@pytest.mark.timeout(60)
def test_every_thread_that_adds_a_result_waits_for_the_collector(on_disk: Root) -> None:
    root = on_disk
    uri, added = root.child("checkpoints/a-0123456789ab"), threading.Semaphore(0)

    def add() -> None:
        use.add([uri])
        added.release()

    with in_use.using(root, [], owner="a run") as use:
        with in_use.collecting(root):
            threading.Thread(target=add, daemon=True).start()
            await_that(lambda: in_use.used(root), limit_s=20)
            threading.Thread(target=add, daemon=True).start()
            assert not added.acquire(timeout=1.0), "what it added may be in the middle of being removed"
        assert added.acquire(timeout=20) and added.acquire(timeout=20)


@pytest.mark.timeout(60)
def test_a_run_is_not_held_up_by_a_collector_that_was_killed(on_disk: Root) -> None:
    root = on_disk
    program = "import sys, time; from storage import in_use; from storage.uri import Root\n"
    program += "with in_use.collecting(Root(sys.argv[1])): print('at work', flush=True); time.sleep(600)"
    with subprocess.Popen([sys.executable, "-c", program, root], cwd=CHECKOUT, stdout=subprocess.PIPE) as collector:
        assert collector.stdout and collector.stdout.readline() == b"at work\n"
        collector.kill()
    with in_use.using(root, [root.child("checkpoints/x-0123456789ab")], owner="a run"):
        pass
