"""The specification of a lease: a row of generations, each taken by one; what a holder is sure of, and until when.

A holder is sure of its lease from the return of `take`, or of a renewal that came in time, until `ttl_s` after that
call began, unless it began to release it or its process was about to end. Nobody takes it or finds it free till then.
"""

import bisect
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from tests.concurrency.record import Life, Operation
from tests.concurrency.violation import Violation

_MARGIN_S = 0.02
"""How far the clock of expiries, which is set now and then, may be from the clock of this history."""
_BACK = 8
"""How many claims before a call are looked at: those of a right history do not overlap."""

Lives = Mapping[tuple[int, int], Life]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Claim:
    """From when until when a holder is sure, and of which call it is so."""

    start: float
    end: float
    owner: str
    by: Operation


class _Tenure:
    """One take, however it ended, and what its taker did with the lease."""

    def __init__(self, take: Operation, life: Life) -> None:
        self.take = take
        self.life = life
        self.generation: int | None = take.result.get("generation")
        self.renewals: list[Operation] = []
        self.releases: list[Operation] = []

    def claims(self, takes: Sequence[Operation]) -> Iterator[Claim]:
        """When the holder is sure; `takes` are all of this lease."""
        ttl_s = self.take.about["ttl_s"]
        limit = min([self.life.doomed, *(each.started for each in self.releases)])
        until = self.take.started + ttl_s - _MARGIN_S
        yield Claim(start=self.take.ended, end=min(until, limit), owner=self.take.name, by=self.take)
        for each in self.renewals:
            if not each.result.get("held"):
                continue
            # One that came too late proves nothing if another could have taken the lease meanwhile.
            if each.ended > until and any(_overlap(each, take) for take in takes if take is not self.take):
                continue
            until = each.started + ttl_s - _MARGIN_S
            yield Claim(start=each.ended, end=min(until, limit), owner=self.take.name, by=each)

    def is_over(self, at: float) -> bool:
        """Whether it surely holds nothing any more: its process has ended, it was released, or it has expired."""
        written = [self.take, *self.renewals]
        expired = max(each.ended for each in written) + self.take.about["ttl_s"] + _MARGIN_S
        return min(self.life.gone, expired) < at or any(each.is_known and each.ended < at for each in self.releases)


def violations(operations: Sequence[Operation], lives: Lives) -> Iterator[Violation]:
    """Everything that is not as `storage.lease` says, of one lease."""
    takes = [each for each in operations if each.does == "take"]
    tenures = {each.name: _Tenure(each, lives.get((each.worker, each.life), Life())) for each in takes}
    for each in operations:
        if each.does in ("renew", "release"):
            tenure = tenures[each.about["owner"]]
            (tenure.renewals if each.does == "renew" else tenure.releases).append(each)
    won = [each for each in takes if each.is_known]
    newest = _Newest(won)
    yield from _generations(won, newest)
    yield from _renewals(tenures, takes, newest)
    yield from _seen(operations, tenures, newest)
    claims = (claim for tenure in tenures.values() if tenure.take.is_known for claim in tenure.claims(takes))
    yield from _sure(operations, sorted(claims, key=lambda claim: claim.start))


class _Newest:
    """Which generation was taken for certain before a moment."""

    def __init__(self, won: Sequence[Operation]) -> None:
        ordered = sorted(won, key=lambda take: take.ended)
        self._ends = [take.ended for take in ordered]
        self._takes: list[Operation | None] = [None]
        for take in ordered:
            best = self._takes[-1]
            is_newer = best is None or take.result["generation"] > best.result["generation"]
            self._takes.append(take if is_newer else best)

    def above(self, generation: int, *, before: float) -> Operation | None:
        """A take of a higher generation that had returned `before`."""
        found = self._takes[bisect.bisect_left(self._ends, before)]
        return found if found and found.result["generation"] > generation else None


def _generations(won: Sequence[Operation], newest: _Newest) -> Iterator[Violation]:
    holders: dict[int, Operation] = {}
    for take in won:
        generation = take.result["generation"]
        other = holders.setdefault(generation, take)
        if other is not take:
            yield Violation(f"two took generation {generation}", other, take)
        higher = newest.above(generation, before=take.started)
        if higher:
            yield Violation("a generation is lower than one before it", higher, take)


def _renewals(tenures: Mapping[str, _Tenure], takes: Sequence[Operation], newest: _Newest) -> Iterator[Violation]:
    for tenure in tenures.values():
        if tenure.generation is None:
            continue
        for each in tenure.renewals:
            higher = newest.above(tenure.generation, before=each.started)
            released = next((release for release in tenure.releases if release.ended < each.started), None)
            if each.result.get("held") and (higher or released):
                found = higher or released
                assert found
                yield Violation("a lease was renewed that another had taken, or that was released", found, each)
            if each.result.get("held") is False and not _may_be_lost(tenure, each, takes):
                yield Violation("a lease was lost that nobody took", tenure.take, each)


def _may_be_lost(tenure: _Tenure, renewal: Operation, takes: Sequence[Operation]) -> bool:
    """Whether it was released, or another one took the lease or may have."""
    if any(release.started < renewal.ended for release in tenure.releases):
        return True
    for take in takes:
        if take is tenure.take or take.started > renewal.ended:
            continue
        is_higher = take.is_known and take.result["generation"] > (tenure.generation or 0)
        is_open = not take.is_known and take.error != "Held" and take.ended > tenure.take.started
        if is_higher or is_open:
            return True
    return False


def _seen(operations: Sequence[Operation], tenures: Mapping[str, _Tenure], newest: _Newest) -> Iterator[Violation]:
    """Yield a violation for each reported holder that cannot have held the lease."""
    for each in operations:
        name = each.result.get("holder")
        if name is None:
            continue
        if name not in tenures or tenures[name].take.started > each.ended:
            yield Violation(f"{name} was seen, who never took the lease", each)
            continue
        tenure = tenures[name]
        if tenure.take is each:
            yield Violation("a taker was refused its own lease", each)
        higher = tenure.generation and newest.above(tenure.generation, before=each.started)
        if higher:
            yield Violation("a holder was seen whom another one had followed", higher, each)
        elif tenure.is_over(each.started) and tenure.take.started < each.started:
            yield Violation("a holder was seen whose lease was over", tenure.take, *tenure.releases[:1], each)


def _sure(operations: Sequence[Operation], claims: Sequence[Claim]) -> Iterator[Violation]:
    """While a holder is sure nobody takes the lease, finds it free or somebody else's."""
    starts = [claim.start for claim in claims]
    for each in operations:
        if each.ended == math.inf or each.does not in ("take", "holder") or each.error not in (None, "Held"):
            continue
        until = bisect.bisect_left(starts, each.started)
        for claim in claims[max(0, until - _BACK) : until]:
            if each.ended >= claim.end or claim.by is each:
                continue
            if each.does == "take" and each.is_known:
                yield Violation(f"the lease was taken while {claim.owner} held it", claim.by, each)
            elif each.result["holder"] != claim.owner:
                yield Violation(f"the lease was not seen to be {claim.owner}'s", claim.by, each)


def _overlap(one: Operation, other: Operation) -> bool:
    return one.started < other.ended and other.started < one.ended
