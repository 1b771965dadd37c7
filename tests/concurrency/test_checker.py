"""The specification: which histories can be explained by single calls, and which cannot."""

import math
from typing import Any

import pytest

from tests.concurrency import checker, plan
from tests.concurrency.plan import SeededProxy
from tests.concurrency.record import Life, Operation, Recording
from tests.concurrency.worker import digest

TTL_S = 1.0


class Written:
    """A history written by hand: one worker per call unless it is said otherwise, and calls by their names."""

    def __init__(self) -> None:
        self.operations: list[Operation] = []
        self.lives: dict[tuple[int, int], Life] = {}

    def add(self, does: str, start: float, end: float, *, by: int = 0, error: str | None = None, **how: Any) -> str:
        """Add a call on `how["on"]`; what it was called with stands in `about`, the rest is what it returned."""
        operation = Operation(
            worker=by,
            life=0,
            number=len(self.operations),
            does=does,
            on=how.pop("on", "x"),
            about=how.pop("about", {}),
            started=start,
            ended=end,
            result=how,
            error=error,
        )
        self.operations.append(operation)
        return operation.name

    def take(self, start: float, end: float, generation: int | None = None, *, by: int = 0, **how: Any) -> str:
        how |= {} if generation is None else {"generation": generation}
        return self.add("take", start, end, by=by, about={"ttl_s": TTL_S}, **how)

    def renew(self, start: float, end: float, owner: str, generation: int, *, held: bool) -> None:
        self.add("renew", start, end, about={"owner": owner, "generation": generation}, held=held)

    def release(self, start: float, end: float, owner: str, generation: int) -> None:
        self.add("release", start, end, about={"owner": owner, "generation": generation})

    def found(self) -> list[str]:
        ordered = sorted(self.operations, key=lambda each: each.started)
        return [each.what for each in checker.violations(Recording(operations=ordered, lives=self.lives, struck={}))]


@pytest.fixture
def history() -> Written:
    return Written()


class TestLease:
    def test_taken_after_release_expiry_or_death_is_right(self, history: Written) -> None:
        first = history.take(0.0, 0.1, 1)
        history.release(0.2, 0.3, first, 1)
        history.take(0.25, 0.35, 2, by=1)
        history.lives[1, 0] = Life(doomed=0.4, gone=0.5)
        history.take(0.45, 0.6, 3, by=2)
        history.take(1.5, 1.7, 4, by=3)
        assert history.found() == []

    def test_taken_while_it_is_held(self, history: Written) -> None:
        history.take(0.0, 0.1, 1)
        history.take(0.2, 0.3, 2, by=1)
        assert history.found() == ["the lease was taken while 0-0 held it"]

    def test_renewed_in_time_it_is_held_for_longer(self, history: Written) -> None:
        first = history.take(0.0, 0.1, 1)
        history.renew(0.8, 0.9, first, 1, held=True)
        history.take(1.5, 1.6, 2, by=1)
        assert history.found() == ["the lease was taken while 0-0 held it"]

    def test_renewal_that_raced_with_a_takeover_proves_nothing(self, history: Written) -> None:
        first = history.take(0.0, 0.1, 1)
        history.renew(0.9, 1.3, first, 1, held=True)  # it looked, stalled beyond its end, and wrote
        history.take(1.1, 1.2, 2, by=1)
        history.renew(1.4, 1.5, first, 1, held=False)
        assert history.found() == []

    def test_two_take_one_generation(self, history: Written) -> None:
        history.take(0.0, 2.0, 1)
        history.take(0.1, 0.2, 1, by=1)
        assert history.found() == ["two took generation 1"]

    def test_generations_grow(self, history: Written) -> None:
        first = history.take(0.0, 0.1, 5)
        history.release(0.2, 0.3, first, 5)
        history.take(0.4, 0.5, 4, by=1)
        assert history.found() == ["a generation is lower than one before it"]

    def test_renewed_though_another_had_it(self, history: Written) -> None:
        first = history.take(0.0, 0.1, 1)
        history.take(1.2, 1.3, 2, by=1)
        history.renew(1.4, 1.5, first, 1, held=True)
        assert history.found() == ["a lease was renewed that another had taken, or that was released"]

    def test_lost_though_nobody_took_it(self, history: Written) -> None:
        first = history.take(0.0, 0.1, 1)
        history.take(0.2, 0.3, by=1, error="Held", holder=first)
        history.renew(0.4, 0.5, first, 1, held=False)
        assert history.found() == ["a lease was lost that nobody took"]

    def test_release_of_an_older_generation_frees_nothing(self, history: Written) -> None:
        first = history.take(0.0, 0.1, 1)
        history.take(1.2, 1.3, 2, by=1)
        history.release(1.4, 1.5, first, 1)
        history.add("holder", 1.6, 1.7, by=2, holder=None)
        assert history.found() == ["the lease was not seen to be 1-1's"]

    @pytest.mark.parametrize("why", ["released", "expired", "dead", "followed", "never taken"])
    def test_holder_that_cannot_be(self, history: Written, why: str) -> None:
        first = history.take(0.0, 0.1, 1)
        if why == "released":
            history.release(0.2, 0.3, first, 1)
        if why == "dead":
            history.lives[0, 0] = Life(doomed=0.2, gone=0.3)
        if why == "followed":
            history.take(1.01, 1.02, 2, by=1)
        at = 1.5 if why == "expired" else 1.06 if why == "followed" else 0.5
        history.add("holder", at, at + 0.01, by=2, holder="9-9" if why == "never taken" else first)
        assert history.found()

    def test_taker_that_does_not_know_its_own_lease(self, history: Written) -> None:
        history.take(0.0, 0.5, error="Held", holder="0-0")
        assert history.found() == ["a taker was refused its own lease"]

    def test_take_that_was_cut_off_may_hold_it_until_its_process_has_ended(self, history: Written) -> None:
        cut = history.take(0.0, math.inf)
        history.lives[0, 0] = Life(doomed=0.1, gone=0.5)
        history.add("holder", 0.3, 0.4, by=1, holder=cut)
        assert history.found() == []
        history.add("holder", 0.6, 0.7, by=1, holder=cut)
        assert history.found() == ["a holder was seen whose lease was over"]


class TestCommit:
    def commit(self, history: Written, start: float, end: float, note: str, *, by: int = 0) -> str:
        return history.add("commit", start, end, by=by, note=note, digest=note)

    def test_one_of_two_wins_and_both_get_its_manifest(self, history: Written) -> None:
        history.add("find", 0.0, 0.15, by=2, note=None)
        self.commit(history, 0.1, 0.3, "1-2", by=0)
        self.commit(history, 0.1, 0.2, "1-2", by=1)
        history.add("find", 0.1, 0.4, by=2, note=None)
        history.add("read", 0.5, 0.6, by=2, note="1-2", digest="1-2", read="1-2")
        assert history.found() == []

    def test_each_gets_its_own(self, history: Written) -> None:
        self.commit(history, 0.1, 0.2, "0-0", by=0)
        self.commit(history, 0.1, 0.3, "1-1", by=1)
        assert history.found() == ["two manifests of one dataset"]

    def test_committer_that_was_killed_may_have_won(self, history: Written) -> None:
        history.add("commit", 0.1, math.inf)
        self.commit(history, 0.2, 0.3, "0-0", by=1)
        assert history.found() == []

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"note": None}, "a committed dataset was not found"),
            ({"digest": "other"}, "two manifests of one dataset"),
            ({"does": "read", "read": "1-7"}, "a listed file is not the committer's"),
            ({"start": 0.0, "end": 0.05}, "a manifest was seen before its commit began"),
            ({"error": "Damaged"}, "find must not raise Damaged"),
        ],
        ids=str,
    )
    def test_later_reader_sees_something_else(self, history: Written, change: dict[str, Any], told: str) -> None:
        self.commit(history, 0.1, 0.2, "0-0")
        found: dict[str, Any] = {"does": "find", "start": 0.3, "end": 0.4, "by": 1, "note": "0-0", "digest": "0-0"}
        history.add(**found | change)
        assert told in history.found()


class TestRegistry:
    def append(self, history: Written, number: int, start: float, end: float, **how: Any) -> str:
        return history.add("append", start, end, about={"number": number}, **how)

    def audit(self, history: Written, *notes: str) -> None:
        decisions = [[number, note, f"of {note}"] for number, note in enumerate(notes, 1)]
        history.add("audit", 90.0, 91.0, decisions=decisions)

    def test_appended_read_refused_and_cut_off(self, history: Written) -> None:
        first = self.append(history, 1, 0.1, 0.2)
        self.append(history, 1, 0.1, 0.3, error="Superseded")
        second = self.append(history, 2, 0.4, math.inf)
        self.append(history, 2, 0.5, 0.6, error="Superseded")
        self.append(history, 3, 0.7, math.inf)
        history.add("latest", 0.45, 0.5, number=1, note=first)
        history.add("latest", 0.8, 0.9, number=2, note=second)
        history.add("history", 0.8, 0.9, count=2, digest=digest([f"of {first}", f"of {second}"]))
        self.audit(history, first, second)
        assert history.found() == []

    def test_appended_and_not_there(self, history: Written) -> None:
        first = self.append(history, 1, 0.1, 0.2)
        self.append(history, 1, 0.1, 0.2)
        self.audit(history, first)
        assert history.found() == ["an appended decision is not in the registry"]

    def test_refused_and_there(self, history: Written) -> None:
        first = self.append(history, 1, 0.1, 0.2, error="Superseded")
        self.audit(history, first)
        assert history.found() == ["a decision that was refused is in the registry"]

    def test_refused_though_free(self, history: Written) -> None:
        first = self.append(history, 1, 0.3, 0.4)
        self.append(history, 1, 0.1, 0.2, error="Superseded")
        self.append(history, 2, 0.5, 0.6, error="Superseded")
        self.audit(history, first)
        assert history.found() == ["a decision was refused though its number was free"] * 2

    @pytest.mark.parametrize("numbers", [[1, 3], [2], [1, 1]])
    def test_gaps_and_doubles(self, history: Written, numbers: list[int]) -> None:
        notes = [self.append(history, number, 0.1, 0.2) for number in numbers]
        decisions = [[number, note, ""] for number, note in zip(numbers, notes, strict=True)]
        history.add("audit", 90.0, 91.0, decisions=decisions)
        assert history.found() == ["numbers with gaps or doubles"]

    def test_what_nobody_decided(self, history: Written) -> None:
        self.append(history, 1, 0.1, 0.2, error="Superseded")
        self.audit(history, "7-7")
        assert history.found() == ["nobody made decision 1, 7-7"]

    @pytest.mark.parametrize(
        ("start", "read", "told"),
        [
            (0.6, {"does": "latest", "number": 1, "note": "0-0"}, "a decision that was certain is not seen"),
            (0.6, {"does": "latest", "number": 0}, "a decision that was certain is not seen"),
            (0.6, {"does": "latest", "number": 3, "note": "0-9"}, "a decision that was read is gone"),
            (0.6, {"does": "latest", "number": 2, "note": "0-0"}, "a decision that was read is another one in the end"),
            (0.1, {"does": "latest", "number": 2, "note": "0-1"}, "a decision was read before it was made"),
            (0.6, {"does": "history", "count": 2, "digest": "other"}, "the decisions that were read are not those"),
        ],
        ids=str,
    )
    def test_wrong_reading(self, history: Written, start: float, read: dict[str, Any], told: str) -> None:
        first, second = self.append(history, 1, 0.0, 0.2), self.append(history, 2, 0.3, 0.5)
        history.add(start=start, end=start + 0.1, **read)
        self.audit(history, first, second)
        assert [what for what in history.found() if what.startswith(told)]


def test_the_same_seed_gives_each_process_the_same_calls_and_faults() -> None:
    def drawn(seed: int) -> list[Any]:
        interruptions = plan.interruptions(seed, 1, ttl_s=TTL_S)
        proxy = SeededProxy("http://127.0.0.1:1", seed=seed, worker=1)
        faults = [proxy.fault_of(method, "/") for method in ("GET", "PUT", "HEAD", "DELETE") for _ in range(100)]
        return [plan.steps(seed, 1, 200), [next(interruptions) for _ in range(200)], faults]

    first = drawn(7)
    assert first == drawn(7) and all(one != other for one, other in zip(first, drawn(8), strict=True))
    assert {None, *first[2]} - {None} and any(interruption.stall_s is None for interruption in first[1])


def test_violation_is_told_with_the_calls_around_it() -> None:
    history = Written()
    for number in range(40):
        history.add("find", number, number + 0.5, note=None)
    history.add("commit", 40.0, 40.5, note="0-40", digest="a")
    history.add("find", 41.0, 41.5, note=None)
    recording = Recording(operations=history.operations, lives={}, struck={})
    (violation,) = checker.violations(recording)
    lines = checker.told(violation, recording).splitlines()
    assert lines[0] == "a committed dataset was not found" and len(lines) == 1 + 12 + 2
