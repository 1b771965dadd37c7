"""One of the contending processes: it carries out its steps and records every call, before and after."""

import contextlib
import dataclasses
import functools
import hashlib
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest.mock import patch

from storage import commits, files, in_use, lease, manifest, registry, s3
from storage.admin.gc import Garbage
from storage.decision import Decision
from storage.lease import Held, Lease
from storage.manifest import Manifest
from storage.registry import Superseded
from storage.uri import URI, CheckpointURI, EvaluationURI, Root
from tests.concurrency import plan
from tests.concurrency.plan import PER_PART, Does, Step
from tests.concurrency.record import Abandoned, Recorder

SHELVES = "datasets"
"""Folder of the folders in which datasets are committed."""
_COLLECTED = "collected"
"""A root of its own, from which garbage collection deletes whatever no run uses."""
_COLLECTOR_TTLS = {"disk": 1, "s3": 6}
"""How much longer than `TTL_S` the lease of garbage collection lasts."""
_MARGIN_TTLS = {"disk": 0, "s3": 3}
"""How long before the end of its lease it deletes nothing more: on S3 a stalled request may arrive late."""
_OWN_STEPS = {plan.WORKERS: [Step(does="audit")]}
"""The last process comes when all others have ended, and reads everything."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class WorkerSpec:
    """Parameters of one worker process."""

    root: str
    folder: Path
    """Where records go."""
    seed: int
    worker: int
    steps: int
    ttl_s: float
    environment: Mapping[str, str]
    """How to reach S3."""
    life: int = 0
    """How often it was started before."""


def work(spec: WorkerSpec) -> None:
    """Carry out the steps that no earlier life of this worker has begun."""
    os.environ.update(spec.environment)
    recorder = Recorder(spec.folder, worker=spec.worker, life=spec.life)
    random.seed(f"{spec.seed} {spec.worker} {spec.life}")  # pauses between tries
    mine = _OWN_STEPS.get(spec.worker) or plan.steps(spec.seed, spec.worker, spec.steps)
    root = Root(spec.root)
    with _recorded_leases(recorder), _impatient(collector_ttl_s=spec.ttl_s * _COLLECTOR_TTLS[_kind(root)]):
        worker = _Worker(root, recorder, ttl_s=spec.ttl_s)
        for number in range(recorder.steps_begun, len(mine)):
            recorder.note("step")
            with contextlib.suppress(Abandoned):
                worker.carry_out(mine[number], part=number // PER_PART)
    recorder.note("done")


class _Worker:
    def __init__(self, root: Root, recorder: Recorder, *, ttl_s: float) -> None:
        self._root = root
        self._recorder = recorder
        self._ttl_s = ttl_s
        self._left: list[Lease] = []
        """Taken and never released: some are renewed or released much later."""

    def carry_out(self, step: Step, *, part: int) -> None:
        """`part`: which shelf and championships the workers are at."""
        target = self._root.child(f"checkpoints/model-{step.target:012x}")
        shelf, data = self._root.child(f"{SHELVES}/{part}"), f"digits-{part}-{step.target % 2}"
        doings: dict[Does, Callable[[], None]] = {
            "lease": lambda: self._lease(target, step),
            "late": lambda: self._late(step),
            "hold": lambda: self._hold(target, step),
            "holder": lambda: self._holder(target),
            "commit": lambda: self._commit(shelf, pause_s=step.pause_s),
            "read": lambda: self._read(shelf, back=step.target),
            "decide": lambda: self._decide(data, pause_s=step.pause_s),
            "history": lambda: self._history(data),
            "use": lambda: self._use(step),
            "collect": self._collect,
            "audit": self._audit,
        }
        doings[step.does]()

    def _lease(self, target: URI, step: Step) -> None:
        try:
            mine = lease.take(self._root, target, owner="", ttl_s=self._ttl_s * step.ttls)
        except Held:
            return
        for _ in range(step.times):
            time.sleep(step.pause_s)
            mine.renew()
        if step.tidy:
            mine.release()
        else:
            self._left.append(mine)

    def _late(self, step: Step) -> None:
        if self._left:
            mine = self._left.pop(0)
            mine.renew()
            if step.tidy:
                mine.release()

    def _hold(self, target: URI, step: Step) -> None:
        ttl_s = self._ttl_s * step.ttls
        with contextlib.suppress(Held), lease.held(self._root, target, owner="", ttl_s=ttl_s, waits=False):
            time.sleep(step.pause_s)

    def _holder(self, target: URI) -> None:
        with self._recorder.call("holder", target.name) as call:
            found = lease.holder(self._root, target)
            call.result["holder"] = found.owner if found else None

    def _commit(self, shelf: URI, *, pause_s: float) -> None:
        """To where nobody has committed yet, as far as this worker sees: all come to the same place."""
        newest = self._newest(shelf)
        uri = _place(shelf, newest + 1 if self._found(_place(shelf, newest)) else newest)
        time.sleep(pause_s)
        with self._recorder.call("commit", _on(uri)) as call:
            content = call.name.encode()
            file = commits.write_file(uri, "train/part-00000.bin", content, split="train", rows=1)
            note = {"note": call.name}
            call.result |= _seen(commits.commit(uri, kind="raw", parents={}, parameters=note, listed=[file]))

    def _read(self, shelf: URI, *, back: int) -> None:
        uri = _place(shelf, max(self._newest(shelf) - back, 0))
        found = self._found(uri)
        if found:
            with self._recorder.call("read", _on(uri)) as call:
                read = [manifest.read_file(uri, file).decode() for file in found.files]
                call.result |= _seen(found) | {"read": ",".join(read)}

    def _listed(self, folder: URI) -> list[str]:
        with self._recorder.call("list", folder.removeprefix(self._root)):
            return files.children(folder)

    def _newest(self, shelf: URI) -> int:
        return max((int(name.rpartition("-")[2], 16) for name in self._listed(shelf)), default=0)

    def _found(self, uri: URI) -> Manifest | None:
        with self._recorder.call("find", _on(uri)) as call:
            found = manifest.find(uri)
            call.result |= _seen(found) if found else {"note": None}
        return found

    def _decide(self, data: str, *, pause_s: float) -> None:
        with self._recorder.call("latest", data) as call:
            latest = registry.latest(self._root, data)
            call.result |= {"number": latest.number, "note": latest.reason} if latest else {"number": 0}
        number = latest.number + 1 if latest else 1
        time.sleep(pause_s)
        with (
            contextlib.suppress(Superseded),
            self._recorder.call("append", data, may_raise=Superseded, number=number) as call,
        ):
            registry.append(self._root, data, _decision(number, call.name))

    def _history(self, data: str) -> None:
        with self._recorder.call("history", data) as call:
            decisions = registry.history(self._root, data)
            call.result |= {"count": len(decisions), "digest": digest(map(_told, decisions))}

    def _use(self, step: Step) -> None:
        """Find or make a result as a run does; until the run ends, it is whole."""
        root = self._root.child(_COLLECTED)
        uri = _place(root.child("datasets/raw"), step.target)
        with self._recorder.call("use", uri.name), in_use.using(Root(root), [uri], owner="a run"):
            if not manifest.find(uri):
                file = commits.write_file(uri, "train/part-00000.bin", b"the same each time", split="train", rows=1)
                commits.commit(uri, kind="raw", parents={}, parameters={}, listed=[file])
            for _ in range(step.times + 1):
                time.sleep(step.pause_s)
                manifest.verify(uri)

    def _collect(self) -> None:
        root = Root(self._root.child(_COLLECTED))
        margin_s = self._ttl_s * _MARGIN_TTLS[_kind(root)]
        with self._recorder.call("collect", _COLLECTED):
            garbage = Garbage(root, keep_days=0)
            for batch in garbage.plan():
                with in_use.collecting(root) as held:
                    garbage.remove(batch, has_lapsed=functools.partial(held.has_lapsed, within_s=margin_s))

    def _audit(self) -> None:
        for shelf in map(self._root.child(SHELVES).child, self._listed(self._root.child(SHELVES))):
            for back in range(self._newest(shelf) + 1):
                with contextlib.suppress(Abandoned):
                    self._read(shelf, back=back)
        for data in self._listed(self._root.child("registry")):
            with contextlib.suppress(Abandoned), self._recorder.call("audit", data) as call:
                decisions = registry.history(self._root, data)
                call.result["decisions"] = [[each.number, each.reason, _told(each)] for each in decisions]


@contextlib.contextmanager
def _impatient(*, collector_ttl_s: float) -> Iterator[None]:
    """Short pauses and leases, and no waiting for the disk: nothing here takes power away."""
    with (
        patch.object(in_use, "_POLL_S", 0.01),
        patch.object(in_use, "_COLLECTOR_TTL_S", collector_ttl_s),
        patch.object(lease, "_POLL_S", 0.01),
        patch.object(s3, "_FIRST_PAUSE_S", 0.05),
        patch.object(files, "_flush", lambda path: None),
    ):
        yield


@contextlib.contextmanager
def _recorded_leases(recorder: Recorder) -> Iterator[None]:
    """Every take, renewal and release is recorded, also those that `lease.held` makes; takers get the call's name."""
    take, renew, release = lease.take, Lease.renew, Lease.release

    def recorded_take(root: Root, target: URI, *, owner: str, ttl_s: float, uses: Iterable[URI] = ()) -> Lease:
        with recorder.call("take", target.name, may_raise=Held, ttl_s=ttl_s) as call:
            try:
                taken = take(root, target, owner=call.name, ttl_s=ttl_s, uses=uses)
            except Held as refused:
                call.result["holder"] = refused.holder.owner
                raise
            call.result["generation"] = taken.generation
        return taken

    def recorded_renew(self: Lease) -> bool:
        with recorder.call("renew", self.target.name, generation=self.generation, owner=self.owner) as call:
            call.result["held"] = renew(self)
        return bool(call.result["held"])

    def recorded_release(self: Lease) -> None:
        with recorder.call("release", self.target.name, generation=self.generation, owner=self.owner):
            release(self)

    with (
        patch.object(lease, "take", recorded_take),
        patch.object(Lease, "renew", recorded_renew),
        patch.object(Lease, "release", recorded_release),
    ):
        yield


def digest(told: Iterable[str]) -> str:
    """Of what decisions say, in their order."""
    return hashlib.sha256("".join(told).encode()).hexdigest()


def _told(decision: Decision) -> str:
    return hashlib.sha256(decision.model_dump_json().encode()).hexdigest()


def _seen(found: Manifest) -> dict[str, Any]:
    return {"note": found.parameters["note"], "digest": hashlib.sha256(found.to_json()).hexdigest()[:12]}


def _decision(number: int, note: str) -> Decision:
    where = CheckpointURI(f"/checkpoints/model-{number:012x}")
    return Decision(
        number=number,
        champion=where,
        challenger=where,
        evaluation=EvaluationURI("/evaluations/model-1"),
        promoted=True,
        reason=note,
        gate={},
        metrics={},
    )


def _kind(root: Root) -> str:
    return "s3" if root.is_s3 else "disk"


def _place(shelf: URI, number: int) -> URI:
    return shelf.child(f"data-{number:012x}")


def _on(uri: URI) -> str:
    return f"{uri.parent.name}/{uri.name}"
