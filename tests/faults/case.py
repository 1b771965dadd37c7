"""One case: reset storage to a stage, inject a fault into a run, repeat the command until it succeeds, check."""

import contextlib
import dataclasses
import os
import random
import re
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from tests.clusters import TwoNodes
from tests.faults import checker, injection
from tests.faults.harness import Harness
from tests.faults.history import Event, step_of
from tests.runs import Run, await_that, kill_process

LIMIT_S = 300.0
"""Time limit of each run and of everything else that is waited for."""
GONE_S = 60.0
"""Time within which every process of a finished run must have ended."""
_TRIES = 3
"""Number of times that the same command is repeated before the case fails."""
Scenario = Callable[["Case"], dict[str, Any] | None]
"""Injects the fault and returns the result of the run that survived; None if no run is expected to succeed."""
_Value = TypeVar("_Value")
_Function = TypeVar("_Function", bound=Callable[..., Any])


class Failed(Exception):
    """A condition of the case does not hold."""


@dataclasses.dataclass(kw_only=True)
class Outcome:
    """Result of one case."""

    survived: bool
    problem: str = ""
    """Description of the failed condition."""
    recovery_s: float | None = None
    """Time from the fault until work continued, if a process had to be restarted."""
    seconds: float = 0.0


class Case:
    """Tools of a kind of fault; every random choice is drawn from the case's seed."""

    def __init__(self, harness: Harness, *, name: str, seed: int) -> None:
        self.harness, self.history, self.name = harness, harness.history, name
        self.random = random.Random(f"{name} {seed}")
        self.folder = harness.folder / "runs"
        """Where its runs keep what is not in storage."""
        self.root, self.golden, self.workers = harness.disk, harness.golden, 0
        self.settings: tuple[str, ...] = ()
        """Further `--set` options."""
        self.options: tuple[str, ...] = ()
        """Further options."""
        self.recovery_s: float | None = None
        """Recovery time, if the kind of fault measures it itself."""
        self.env: dict[str, str] = {}
        self.runs: list[Run] = []
        self.once = harness.folder / "once"

    def begin(
        self,
        *settings: str,
        after: str | None,
        workers: int = 0,
        env: Mapping[str, str] | None = None,
        on_s3: bool = False,
    ) -> None:
        """Begin with what the golden run had left after a stage, on a disk or on S3.

        Args:
            settings: Further `--set` options.
            after: The stage; none: empty.
            workers: Of the runs; none: without Ray, which is faster.
            env: Further variables. A case that trains has the result of an undisturbed run with all of these.
            on_s3: Otherwise on a disk.
        """
        self.settings, self.workers, self.env = settings, workers, dict(env or {})
        if settings or env or (workers > 1 and after in ("raw", "prepared")):
            self.golden = self.harness.variant(*settings, workers=workers, env=self.env)
        self.root = self.harness.bucket if on_s3 else self.harness.disk
        self.harness.reset_to(self.root, until=after)
        self.once.unlink(missing_ok=True)
        self.history.begin(name=self.name)

    def start(self, point: str | None = None, at: str = "", **fault: Any) -> Run:
        """Start the command; with a `point`, inject the fault into the first process that reaches it, once per case."""
        words = self.harness.arguments(self.root, *self.settings, workers=self.workers)
        strike = injection.fault(point, at, once=self.once, **fault) if point else None
        env = self.harness.environment(self.root) | self.injection_env(strike) | self.env
        run = Run(*words, *self.options, folder=self.folder, env=env)
        self.runs.append(run)
        return run

    def injection_env(self, fault: dict[str, Any] | None = None) -> dict[str, str]:
        """Variables of a process that records failpoints, and into which `fault` is injected."""
        return injection.environment(self.history.path, fault)

    def run(self, point: str, at: str = "", **fault: Any) -> int:
        """The exit code of a run with an injected fault."""
        return self.wait(self.start(point, at, **fault))

    def wait(self, run: Run) -> int:
        """The exit code of `run`."""
        self.until(lambda: run.process.poll() is not None, "the run ended")
        code: int = run.process.returncode
        self.history.add(point="end", code=code)
        return code

    def finish(self) -> dict[str, Any]:
        """The result of the same command, given until it succeeds."""
        for _ in range(_TRIES):
            run = self.start()
            if self.wait(run) == 0:
                return run.result()
        raise Failed(f"it did not succeed in {_TRIES} more tries:\n{_tail(run)}")

    def settle(self, run: Run) -> dict[str, Any]:
        """The result of `run`, or of the same command afterwards."""
        return run.result() if self.wait(run) == 0 else self.finish()

    def expect_recovery(self, run: Run, *, may_retry: bool = True) -> dict[str, Any]:
        """The result of `run`, which has to succeed by itself, if so without beginning any stage again."""
        if self.wait(run) != 0 or (run.says("Retry") and not may_retry):
            raise Failed(f"the run did not survive the fault:\n{_tail(run)}")
        return run.result()

    def expect_refusal(self, run: Run, *words: str) -> None:
        """Wait for `run`, which has to fail at once, not tried again, with words that say why."""
        if self.wait(run) != 1 or run.says("Retry") or not all(map(run.says, words)):
            raise Failed(f"it did not end with exit code 1 and {words}:\n{_tail(run)}")

    def expect_resumed_at_epoch_2(self, result: dict[str, Any]) -> dict[str, Any]:
        """`result`, once it is known that no process trained epoch 1 again."""
        events = list(self.history.events())
        struck_s = next(event["s"] for event in events if "struck" in event)
        if any(step_of(1)(event) and event["started"] > struck_s for event in events):
            raise Failed("training began again instead of resuming")
        return result

    def kill_flow(self, run: Run) -> None:
        """SIGKILL the flow; what it had started has to end with it."""
        self.send_signal(run.process.pid, signal.SIGKILL, what="flow")
        self.wait(run)
        self.until(lambda: not run.processes(), "what the flow had started ended with it")

    def kill_process(self, run: Run, title: str) -> None:
        """SIGKILL the first process of `run` whose command line holds `title`, as soon as there is one."""

        def pids() -> list[int]:
            return [pid for pid, command in run.processes().items() if title in command]

        pid = self.until(pids, f"a process {title!r} appeared", interval_s=0.02)[0]
        self.send_signal(pid, signal.SIGKILL, what=title)

    def send_signal(self, pid: int, signal_: signal.Signals, *, what: str) -> None:
        """Send a signal from outside, to one recorded process."""
        self.history.add(point="outside", struck=signal_.name, at=what, pid=pid)
        self.once.touch()
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal_)

    def damage(self, change: Callable[[], object], *, what: str) -> None:
        """Change stored bytes while nothing runs."""
        self.history.add(point="outside", struck="damage", at=what)
        self.once.touch()
        change()

    def until(
        self, condition: Callable[[], _Value], what: str, *, interval_s: float = 0.1, limit_s: float = LIMIT_S
    ) -> _Value:
        """Wait until `condition` holds; return its value, or raise `Failed` if it does not within the limit."""
        try:
            return await_that(condition, limit_s=limit_s, interval_s=interval_s)
        except AssertionError:
            raise Failed(f"timed out after {limit_s:.0f} s, waiting until {what}") from None

    def reaches(self, run: Run, matches: Callable[[Event], bool], what: str) -> None:
        """Wait until the history has such an event; raises `Failed` when the run ends before."""
        self.until(lambda: self.history.has(matches) or run.process.poll() is not None, what, interval_s=0.02)
        if not self.history.has(matches):
            raise Failed(f"the run ended before {what}:\n{_tail(run)}")

    def paths(self, pattern: str) -> list[Path]:
        """Return what there is on the disk, sorted; never nothing."""
        paths = sorted(Path(self.root).glob(pattern))
        if not paths:
            raise Failed(f"there is nothing like {pattern}")
        return paths

    @contextlib.contextmanager
    def two_nodes(self) -> Iterator[TwoNodes]:
        """A cluster that the case's runs use for as long as the block lasts; in the end nobody holds any of it."""
        with TwoNodes(os.environ | self.harness.environment(self.root) | self.injection_env()) as cluster:
            self.env = cluster.env
            yield cluster
            self.until(lambda: cluster.used_cpus() == 0, "no CPU was held", interval_s=1, limit_s=60)


@dataclasses.dataclass(frozen=True)
class Kind:
    """One kind of fault."""

    scenario: Scenario
    is_quick: bool
    """Whether it belongs to the short form."""


KINDS: dict[str, Kind] = {}
"""The kinds of fault by name; all of them once `tests.faults.kinds` is imported."""


def kind(name: str, *, quick: bool = False, **arguments: Any) -> Callable[[_Function], _Function]:
    """Register a scenario under a name, with the arguments that this kind gives it; one may stand under several."""

    def add(scenario: _Function) -> _Function:
        assert name not in KINDS, name
        KINDS[name] = Kind(partial(scenario, **arguments), quick)
        return scenario

    return add


def carry_out(harness: Harness, name: str, scenario: Scenario, *, seed: int) -> Outcome:
    """The outcome of one case; nothing of it is left running."""
    case = Case(harness, name=name, seed=seed)
    started = time.monotonic()
    outcome = Outcome(survived=True)
    try:
        result = scenario(case)
        if not case.once.exists() and not harness.proxy.injected:
            raise Failed("the fault was never injected")
        problems = list(_problems(case, result))
        if problems:
            raise Failed("; ".join(problems))
    except Exception as error:  # one case must not take the others with it
        is_expected = isinstance(error, (Failed, AssertionError))
        outcome.survived, outcome.problem = False, str(error) if is_expected else traceback.format_exc()
    finally:
        _end_all(case)
    outcome.recovery_s = case.recovery_s or case.history.recovery_s()
    outcome.seconds = time.monotonic() - started
    case.history.add(point="outcome", **dataclasses.asdict(outcome))
    return outcome


def _problems(case: Case, result: dict[str, Any] | None) -> Iterator[str]:
    secrets = [case.harness.server.secret_key]
    yield from checker.violations(case.root, result, case.golden, secrets=secrets, folder=case.folder)
    try:
        await_that(lambda: not any(run.processes() for run in case.runs), limit_s=GONE_S)
    except AssertionError:
        left = [command for run in case.runs for command in run.processes().values()]
        yield f"{len(left)} processes are left: {left[:3]}"
    ray = {folder for run in case.runs for folder in re.findall(r"/tmp/ray-\w+", run.log.read_text(errors="replace"))}
    if left_folders := [folder for folder in sorted(ray) if Path(folder).exists()]:
        yield f"Ray's folders are left: {left_folders}"


def _end_all(case: Case) -> None:
    """Kill, by pid, whatever the runs of this case left."""
    for run in case.runs:
        run.process.kill()
        run.process.wait()
        for pid in run.processes():
            kill_process(pid)


def _tail(run: Run) -> str:
    return "\n".join(run.log.read_text(errors="replace").splitlines()[-8:])
