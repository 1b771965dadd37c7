"""The sequential specification: what each call may return, given what was certain before it and possible until its end.

What a call does takes effect at one moment between its start and its end. A call without an end may or may not have
taken effect.
"""

import bisect
from collections import defaultdict
from collections.abc import Iterator, Sequence

from tests.concurrency import leases
from tests.concurrency.record import Operation, Recording
from tests.concurrency.violation import Violation
from tests.concurrency.worker import digest

_MAY_RAISE = {"take": {"Held"}, "append": {"Superseded"}}
_ABOUT = 12
"""How many calls before and after the offending ones are shown."""


def violations(recording: Recording) -> Iterator[Violation]:
    """Everything in the history that no sequence of single calls explains."""
    by_place: dict[str, list[Operation]] = defaultdict(list)
    for each in recording.operations:
        by_place[each.on].append(each)
        if each.error and each.error not in _MAY_RAISE.get(each.does, ()):
            yield Violation(f"{each.does} must not raise {each.error}", each)
    for operations in by_place.values():
        does = {each.does for each in operations}
        if does & {"commit", "find", "read"}:
            yield from _commits(operations)
        elif does & {"append", "latest", "history", "audit"}:
            yield from _registry(operations)
        elif not does & {"list", "use", "collect"}:  # a use or a collection only has to succeed
            yield from leases.violations(operations, recording.lives)


def told(violation: Violation, recording: Recording) -> str:
    """The violation and the calls around it, on the same place."""
    same = [each for each in recording.operations if each.on == violation.operations[0].on]
    places = [same.index(each) for each in violation.operations]
    shown = sorted({n for place in places for n in range(max(0, place - _ABOUT), min(len(same), place + _ABOUT + 1))})
    since = recording.operations[0].started
    lines = [f"{'>' if n in places else ' '} {same[n].told(since=since)}" for n in shown]
    return "\n".join([violation.what, *lines])


def _commits(operations: Sequence[Operation]) -> Iterator[Violation]:
    """A dataset: absent, and from one moment on what one of the committers wrote."""
    committers = {each.name: each for each in operations if each.does == "commit"}
    seen = sorted((each for each in operations if each.result.get("note")), key=lambda each: each.ended)
    if not seen:
        return
    first = seen[0]
    winner = committers.get(first.result["note"])
    if winner is None:
        yield Violation("a manifest that nobody committed", first)
    for each in seen:
        if (each.result["note"], each.result["digest"]) != (first.result["note"], first.result["digest"]):
            yield Violation("two manifests of one dataset", first, each)
        if winner and winner.started > each.ended:
            yield Violation("a manifest was seen before its commit began", each, winner)
        if each.does == "read" and each.result["read"] != each.result["note"]:
            yield Violation("a listed file is not the committer's", each)
    for each in operations:
        if each.does == "find" and each.result.get("note", "") is None and each.started > first.ended:
            yield Violation("a committed dataset was not found", first, each)


def _registry(operations: Sequence[Operation]) -> Iterator[Violation]:
    """A championship: a list that only grows, by one decision at a time."""
    audits = [each for each in operations if each.does == "audit" and each.is_known]
    if not audits:
        return
    final = audits[-1].result["decisions"]
    if [number for number, _, _ in final] != list(range(1, len(final) + 1)):
        yield Violation("numbers with gaps or doubles", audits[-1])
        return
    recorded = {note: number for number, note, _ in final}
    if len(recorded) < len(final):
        yield Violation("a decision was recorded twice", audits[-1])
    appends = {each.name: each for each in operations if each.does == "append"}
    for note, number in recorded.items():
        if note not in appends or appends[note].about["number"] != number:
            yield Violation(f"nobody made decision {number}, {note}", audits[-1])
            return
    yield from _appended(list(appends.values()), [note for _, note, _ in final], recorded, appends)
    yield from _read(operations, final, [appends[note].started for _, note, _ in final])


def _appended(
    tried: Sequence[Operation], notes: Sequence[str], recorded: dict[str, int], appends: dict[str, Operation]
) -> Iterator[Violation]:
    for each in tried:
        number = each.about["number"]
        if each.is_known and each.name not in recorded:
            yield Violation("an appended decision is not in the registry", each)
        if each.error == "Superseded" and each.name in recorded:
            yield Violation("a decision that was refused is in the registry", each)
        elif each.error == "Superseded" and not (
            number <= len(notes) and appends[notes[number - 1]].started < each.ended
        ):
            yield Violation("a decision was refused though its number was free", each)


def _read(operations: Sequence[Operation], final: list[list[str]], begun: Sequence[float]) -> Iterator[Violation]:
    """What was read is the beginning of what is there in the end, and at least what was certain before."""
    certain = sorted((each.ended, _length(each)) for each in operations if each.is_known)
    ends = [ended for ended, _ in certain]
    most = [0]
    for _, length in certain:
        most.append(max(most[-1], length))
    for each in operations:
        if each.does not in ("latest", "history", "append") or not each.is_known:
            continue
        length = _length(each)
        if length > len(final):
            yield Violation("a decision that was read is gone", each)
        elif each.does == "latest" and length and each.result["note"] != final[length - 1][1]:
            yield Violation("a decision that was read is another one in the end", each)
        elif each.does == "history" and each.result["digest"] != digest(told for _, _, told in final[:length]):
            yield Violation("the decisions that were read are not those that came first", each)
        elif length and max(begun[:length]) > each.ended:
            yield Violation("a decision was read before it was made", each)
        elif length < most[bisect.bisect_left(ends, each.started)]:
            yield Violation("a decision that was certain is not seen", each)


def _length(operation: Operation) -> int:
    """How many decisions there are for certain once it has returned."""
    if operation.does == "append":
        return int(operation.about["number"])
    return int(operation.result.get("number", operation.result.get("count", 0)))
