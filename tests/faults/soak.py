"""`python -m tests.faults.soak`: hours of `make up` with schedules, growing images, kills, and an endpoint under load.

Everything lies below `--folder`: a copy of the checkout, images, storage, PREFECT_HOME, logs, `soak.md` with the
tables, and `history.jsonl` with each kill, each request, and the figures of each minute.
"""

import argparse
import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import httpx

from tests.faults.history import History
from tests.faults.soak_images import CLASSES, Photographs, encoded
from tests.faults.soak_report import MODEL, Database, report
from tests.prefect_system import free_port
from tests.runs import await_that, copy_of_checkout, kill_all_with, kill_process, processes_with, repeatedly

_RECIPE = {"model": "small-cnn", "image_size": 24, "epochs": 6}
_KINDS = ("run", "worker", "server", "up", "ray", "everything", "Ctrl-C")
"""What is killed: a process of this role; every process of `make up` at once; or all of it by SIGINT."""
_STRIKE = 1 / 15
"""Chance of a due kill each second while there is a victim, so that it hits any stage of a run."""
_SETTLE_S = 1800
"""Longest time that runs which were due before the end may take to end."""
_ROLES = {
    "child.py": "supervisors",
    "flows serve": "endpoint",
    "flows up": "up",
    "server start": "server",
    "worker start": "worker",
    "prefect.engine": "run",
    "tasks.jobs": "job",
    "ray": "ray",
}
"""Role of a process by a part of its command line; the first that fits."""


class System:
    """`make up` on a copy of the checkout, typed again whenever it has ended, and `data-to-model serve` beside it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.home, self.root = folder, folder / "home", folder / "root"
        self.history, self.photos = History(folder / "history.jsonl"), Photographs(folder)
        self._checkout, self._mark = copy_of_checkout(folder / "checkout"), f"PREFECT_HOME={self.home}"
        self._env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        self._env |= {"PIPELINE_STORAGE": str(self.root), "OMP_WAIT_POLICY": "PASSIVE"}
        self._port, _, self._endpoint_port = free_port(), free_port(), free_port()  # `make up` takes two
        self._up: subprocess.Popen[bytes] | None = None
        self._not_before_s = 0.0

    def begin(self, *, pace_s: int) -> None:
        """Train the first champion by hand, and schedule the next ones."""
        settings = [word for name, value in _RECIPE.items() for word in ("--set", f"{name}={value}")]
        words = ["--data", str(self.photos.labeled), "--register-as", MODEL, "--recipe", "images-resnet18"]
        run = self._start("run", *words, "--workers", "0", *settings, PREFECT_HOME=str(self.folder / "by-hand"))
        assert run.wait() == 0, "see run.log"
        (self._checkout / "deployments.yaml").write_text(self._deployments(pace_s))
        self.home.mkdir()

    def _deployments(self, pace_s: int) -> str:
        now = datetime.now(UTC).replace(second=0, microsecond=0).isoformat()
        often, seldom = (f'interval: {round(factor * pace_s)}, anchor_date: "{now}"' for factor in (0.6, 2))
        return f"""
deployments:
  - name: {MODEL}
    entrypoint: flows/pipeline.py:images
    parameters:
      {{data: {self.photos.labeled}, recipe: images-resnet18, register_as: {MODEL}, workers: 0, settings: {_RECIPE}}}
    schedules:
      - {{slug: often, {often}}}
      - {{slug: by-ray, {seldom}, parameters: {{workers: 1, settings: {_RECIPE | {"seed": 2}}}}}}
  - name: {MODEL}
    entrypoint: flows/predict.py:predict
    parameters: {{data: {self.photos.arrivals}, model: "champion:{MODEL}", workers: 0}}
    schedules: [{{slug: new-images, {often}}}]
"""

    def _start(self, command: str, *words: str, **env: str) -> "subprocess.Popen[bytes]":
        with (self.folder / f"{command}.log").open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-m", "flows", command, *words],
                cwd=self._checkout,
                env=self._env | env,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
            )

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """The endpoint, with two requests a second, for as long as the block lasts; it must not end before."""
        server = self._start("serve", f"champion:{MODEL}", "--port", str(self._endpoint_port))
        client = httpx.Client(base_url=f"http://127.0.0.1:{self._endpoint_port}", timeout=30, trust_env=False)
        try:
            await_that(lambda: "Ctrl-C ends it" in (self.folder / "serve.log").read_text())
            with repeatedly(lambda: self._ask(client), interval_s=0.5):
                yield
            server.terminate()
            assert server.wait(60) == 0, "the endpoint did not end well: see serve.log"
        finally:
            server.kill()

    def _ask(self, client: httpx.Client) -> None:
        number, begun, answer = random.randrange(10**6), time.monotonic(), dict[str, object](status=0)
        try:
            response = client.post("/predict", content=encoded(number, number % len(CLASSES), is_dark=False))
            answer = {"status": response.status_code, "digest": response.json()["checkpoint"]["digest"]}
        except (httpx.HTTPError, ValueError, KeyError) as error:
            answer["error"] = repr(error)
        self.history.add(point="request", **answer, seconds=round(time.monotonic() - begun, 3))

    def keep_up(self) -> None:
        """Type `make up` if it does not run; five seconds after it has ended, as a service manager does."""
        if self._up is not None and (code := self._up.poll()) is not None:
            self.history.add(point="ended", code=code)
            self._up, self._not_before_s = None, time.monotonic() + 5
        if self._up is None and time.monotonic() >= self._not_before_s:
            self._up = self._start("up", "--port", str(self._port), PREFECT_HOME=str(self.home))
            self.history.add(point="typed")

    def strike(self, kind: str, draw: random.Random) -> bool:
        """Kill what `kind` says; return whether there was a victim."""
        roles = {pid: role_of(command) for pid, command in sorted(processes_with(self._mark).items())}
        of_role = [pid for pid, role in roles.items() if role == kind]
        victims = draw.sample(of_role, min(1, len(of_role)))
        if kind in ("everything", "Ctrl-C") and "worker" in roles.values():
            victims = list(roles)
        if victims:
            self.history.add(point="kill", kind=kind, pids=victims)
        if victims and kind == "Ctrl-C":
            self.press_ctrl_c()
        else:
            for pid in victims:
                kill_process(pid)
        return bool(victims)

    def press_ctrl_c(self) -> None:
        if self._up is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._up.pid, signal.SIGINT)

    def end(self) -> None:
        """End `make up` by Ctrl-C; record the processes that are left after a minute."""
        self.press_ctrl_c()
        with contextlib.suppress(AssertionError):
            await_that(lambda: not processes_with(self._mark), limit_s=60)
        self.history.add(point="left", commands=list(processes_with(self._mark).values()))
        kill_all_with(self._mark)

    def measure(self) -> None:
        """Record sizes and memory in units of 10**6 bytes, and the runs by state."""
        lines = subprocess.check_output(["du", "-sb", str(self.root), str(self.home)]).splitlines()
        root, home = (round(int(line.split()[0]) / 10**6, 1) for line in lines)
        memory: dict[str, int] = {}
        for pid, command in processes_with(f"PIPELINE_STORAGE={self.root}").items():
            with contextlib.suppress(OSError):
                pages, role = int(Path(f"/proc/{pid}/statm").read_text().split()[1]), role_of(command)
                memory[role] = memory.get(role, 0) + pages * os.sysconf("SC_PAGE_SIZE") // 10**6
        figures = {"root": root, "home": home, "memory": memory, "images": len(self.photos.files())}
        database = Database(self.home)
        self.history.add(point="minute", **figures, database=database.size_mb(), runs=database.states())


def role_of(command: str) -> str:
    return next((role for part, role in _ROLES.items() if part in command), "other")


def soak(system: System, *, seconds: float, pace_s: int, seed: int) -> float:
    """Grow the images every `pace_s`, kill something as often; return the time until which schedules count."""
    draw, plan, due, database = random.Random(seed), list[str](), list[str](), Database(system.home)
    begun, is_dark = time.time(), False
    end, next_step, next_kill, next_minute = begun + seconds, begun + pace_s, begun + pace_s, begun
    while (now := time.time()) < end or (database.num_unended(end) and now < end + _SETTLE_S):
        system.keep_up()
        if now >= next_step and now < end - pace_s:
            next_step += pace_s
            was_dark, is_dark = is_dark, now >= begun + seconds / 2
            system.photos.grow(100 if is_dark and not was_dark else 10, is_dark=is_dark)  # first many at once
            system.history.add(point="growth", is_dark=is_dark)
        if now >= next_kill:
            next_kill += draw.uniform(0.5, 1.5) * pace_s  # in no step with the schedules
            plan = plan or draw.sample(_KINDS, len(_KINDS))
            due.append(plan.pop())
        if now < end:
            due = [kind for kind in due if draw.random() >= _STRIKE or not system.strike(kind, draw)]
        if now >= next_minute:
            next_minute += 60
            system.measure()
        time.sleep(1)
    return end


def main() -> int:
    """Soak; print the tables and each promise that was broken; return 0 if there is none."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak")
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=7, help="decides the order of the kills, and their moments")
    parser.add_argument("--pace", type=int, default=300, metavar="S", help="seconds between new images")
    parser.add_argument("--folder", type=Path, required=True, help="a new folder for everything")
    options = parser.parse_args()
    options.folder.mkdir(parents=True)
    system = System(options.folder.resolve())
    system.begin(pace_s=options.pace)
    with system.serving():
        try:
            end = soak(system, seconds=options.hours * 3600, pace_s=options.pace, seed=options.seed)
        finally:
            system.end()
        time.sleep(10)  # the champion is in use by then
    table, problems = report(system.folder, system.photos, end=end)
    (system.folder / "soak.md").write_text(table)
    print(table, *(problems or ["all promises hold"]), sep="\n")
    return int(bool(problems))


if __name__ == "__main__":
    raise SystemExit(main())
