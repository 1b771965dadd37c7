"""Runs on one machine take turns: a waiting run names the one it waits for; ended and frozen runs are skipped."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from storage import commits, lease
from storage.process import Process
from storage.uri import DatasetURI, Root
from tasks.jobs import events, machine_slots, main
from tasks.jobs.deadline import deadline
from tasks.jobs.slot_tickets import Claim, Ticket
from tests.jobs import raw
from tests.runs import CHECKOUT, await_that

pytestmark = pytest.mark.timeout(120)

_PROGRAM = """
import sys
from tasks.jobs import machine_slots as slots
from tasks.jobs import slot_tickets
slots._FROZEN_S, slots._BEAT_S, slot_tickets.KEPT_S = 3.0, 0.2, 60.0
claim = slots.Claim.model_validate_json(sys.argv[1])
with slots.turn(claim, on_wait=lambda who: print("waiting:", who, flush=True), on_trouble=print) as keep:
    print("turn", flush=True)
    sys.stdin.read()
    keep()
"""


ENDED = Process.current().model_copy(update={"started": 1})
"""For which nothing is kept."""


def claim(folder: Path, who: str, **more: Any) -> Claim:
    """All of a machine with two cores, and with `more`."""
    usual: dict[str, Any] = {
        "run": who,
        "process": ENDED,
        "doing": "training",
        "cores": [0, 1],
        "num_cores": 2,
        "gpus": [],
        "shared": False,
    }
    return Claim(folder=str(folder / "slots"), who=who, **(usual | more))


class Run:
    """A process that takes its turn, and keeps it until it is told to end."""

    def __init__(self, claim: Claim, *, log: Path) -> None:
        self.log = log
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, claim.model_dump_json()],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=log.open("wb"),
            # As in a terminal: what is started in a shell's background ignores SIGINT, and so does all that it starts.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def says(self, text: str) -> None:
        """Wait until it has said `text`."""
        await_that(lambda: text in self.log.read_text().splitlines(), limit_s=30, interval_s=0.02)

    def waits(self) -> bool:
        """Whether it has not had its turn yet."""
        return "turn" not in self.log.read_text().splitlines()

    def end(self) -> None:
        """Have it give its turn back."""
        self.process.communicate()


Start = Callable[..., Run]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a process that claims what it is given, under a name of its own."""
    with contextlib.ExitStack() as stack:

        def started(who: str, **more: Any) -> Run:
            run = Run(claim(tmp_path, who, **more), log=tmp_path / f"{who}.log")
            stack.callback(run.process.wait)
            stack.callback(run.process.kill)
            return run

        yield started


def test_a_run_waits_for_another_says_for_whom_and_begins_as_soon_as_that_one_is_killed(start: Start) -> None:
    first = start("amber")
    first.says("turn")
    second = start("birch")
    second.says("waiting: amber is training on this machine")
    third = start("cedar")
    third.says("waiting: amber is training on this machine; 1 more in line before this run")
    first.process.kill()
    second.says("turn")
    third.says("waiting: birch is training on this machine")
    assert third.waits(), "two had their turn at once"
    second.end()
    third.says("turn")


def test_a_run_predicts_after_its_training_without_waiting_for_the_training_of_another(
    tmp_path: Path, start: Start
) -> None:
    person = subprocess.Popen(["sleep", "60"])
    try:
        first = start("amber", process=_process(person.pid))
        first.says("turn")
        second = start("birch")
        second.says("waiting: amber is training on this machine")
        first.end()
        again = start("amber-again", run="amber", process=_process(person.pid), doing="predicting")
        again.says("turn")
        second.says("waiting: amber-again is predicting on this machine")
        again.end()
        assert second.waits(), "what the run will do next, nobody knows"
    finally:
        person.kill()
        person.wait()
    second.says("turn")


def test_what_is_kept_for_a_run_is_free_as_soon_as_the_run_has_ended(tmp_path: Path, start: Start) -> None:
    first = start("amber", process=Process.current())
    first.says("turn")
    second = start("birch")
    second.says("waiting: amber is training on this machine")
    first.end()
    machine_slots.release(tmp_path / "slots", "cedar")
    assert second.waits(), "another run has ended"
    machine_slots.release(tmp_path / "slots", "amber")
    second.says("turn")


def test_what_was_kept_before_the_machine_started_again_is_not_waited_for(tmp_path: Path, start: Start) -> None:
    before = Process.current().model_copy(update={"boot": "another"})
    ticket = Ticket(number=1, claim=claim(tmp_path, "amber", process=before), given=[0, 1], kept_until=10**9)
    (tmp_path / "slots").mkdir(mode=0o700)
    (tmp_path / "slots" / "000001.json").write_text(ticket.model_dump_json())
    start("birch").says("turn")


def _process(pid: int) -> Process:
    """The process with this number."""
    started = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    return Process.current().model_copy(update={"pid": pid, "started": started})


def test_a_run_that_is_interrupted_while_it_waits_ends_at_once_and_holds_nobody_up(start: Start) -> None:
    first = start("amber")
    first.says("turn")
    second = start("birch")
    second.says("waiting: amber is training on this machine")
    third = start("cedar")
    third.says("waiting: amber is training on this machine; 1 more in line before this run")
    second.process.send_signal(signal.SIGINT)
    assert second.process.wait(5) != 0
    third.says("waiting: amber is training on this machine")
    first.end()
    third.says("turn")


def test_a_frozen_run_is_not_waited_for(start: Start) -> None:
    first = start("amber")
    first.says("turn")
    first.process.send_signal(signal.SIGSTOP)
    second = start("birch")
    second.says("waiting: amber is training on this machine")
    second.says("turn")
    first.process.send_signal(signal.SIGCONT)


def test_runs_that_ask_for_a_part_of_the_cores_share_them_and_a_later_one_does_not_overtake(start: Start) -> None:
    halves = start("amber", num_cores=1), start("birch", num_cores=1)
    for half in halves:
        half.says("turn")
    whole = start("cedar")
    await_that(lambda: "waiting: " in whole.log.read_text(), limit_s=30)
    halves[0].end()
    late = start("dogwood", num_cores=1)
    late.says("waiting: birch is training on this machine; 1 more in line before this run")
    halves[1].end()
    whole.says("turn")
    late.says("waiting: cedar is training on this machine")


def test_a_gpu_is_used_by_one_run_at_a_time(start: Start) -> None:
    first = start("amber", num_cores=1, gpus=["0"])
    first.says("turn")
    start("birch", num_cores=1, gpus=["1"]).says("turn")
    for number, named in enumerate((["0"], ["GPU-4f2a"])):
        start(f"cedar-{number}", cores=[2, 3 + number], num_cores=1, gpus=named).says(
            "waiting: amber is training on this machine"
            + (" and birch is training on this machine" if number else "")
            + ("; 1 more in line before this run" if number else "")
        )
    start("dogwood", cores=[5], num_cores=1).says("turn")


def test_the_wait_is_not_counted_by_any_deadline(tmp_path: Path, start: Start) -> None:
    first = start("amber")
    first.says("turn")
    threading.Timer(2.0, first.process.kill).start()
    with deadline(60), deadline(1.0):
        began = time.monotonic()
        with machine_slots.turn(claim(tmp_path, "birch")):
            assert time.monotonic() - began > 1.5
            with pytest.raises(TimeoutError, match="the deadline holds after the wait"):
                _sleep_until_interrupted()


def _sleep_until_interrupted() -> None:
    try:
        time.sleep(30)
    except Exception:
        raise TimeoutError("the deadline holds after the wait") from None


def test_storage_errors_do_not_end_the_wait(tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_slots, "_LOOK_S", 0.05)
    first = start("amber")
    first.says("turn")
    asked: list[float] = []
    told: list[str] = []

    def is_done() -> bool:
        asked.append(time.monotonic())
        if len(asked) == 3:
            first.process.kill()
        raise ConnectionError("no answer")

    with machine_slots.turn(claim(tmp_path, "birch"), is_done=is_done, on_trouble=told.append):
        assert not told and len(asked) >= 3


def test_a_folder_that_other_users_can_write_to_is_not_used(tmp_path: Path) -> None:
    folder = tmp_path / "slots"
    folder.mkdir(mode=0o700)
    folder.chmod(0o777)
    told: list[str] = []
    with machine_slots.turn(claim(tmp_path, "amber"), on_trouble=told.append):
        assert not list(folder.iterdir())
    said = f"runs on this machine do not take turns: {folder} is not owned by this user, or is writable by others"
    assert told == [said]
    with machine_slots.turn(claim(tmp_path, "amber", shared=True)):
        assert [path.name for path in folder.iterdir()] == ["000001.json"]
    assert not list(folder.iterdir())


def test_a_run_that_waits_for_a_lease_gives_up_its_turn(
    tmp_path: Path, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(main, "_LOOK_S", 0.05)
    root = Root(str(tmp_path / "root"))
    spec = raw.to_train(root, DatasetURI(root.child("datasets/prepared/none-0123456789ab")), model="small-cnn")
    spec = spec.model_copy(update={"claim": claim(tmp_path, "birch")})
    told: list[str] = []
    other = lease.take(root, spec.target, owner="train-1")

    def meanwhile() -> None:
        await_that(lambda: any("is already producing" in line for line in told), limit_s=30)
        start("amber").says("turn")
        other.release()
        await_that(lambda: any("amber is training" in line for line in told), limit_s=30)
        commits.commit(spec.target, kind="checkpoint", parents={}, parameters={}, listed=[])

    thread = threading.Thread(target=meanwhile)
    thread.start()
    with events.redirect_lines(told.append), main.held(spec) as is_ours:
        thread.join()
        assert not is_ours, "another run made the result meanwhile"
    assert os.listdir(tmp_path / "slots") == ["000001.json"], "that of the one that computes"
