"""The mutation check: with one protection switched off, its case must fail; with it, the same case passes."""

import dataclasses
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from tests.faults import harness
from tests.faults.case import carry_out
from tests.faults.kinds import KINDS
from tests.runs import CHECKOUT


@dataclasses.dataclass(frozen=True, kw_only=True)
class Mutation:
    """One protection, and how to switch it off in a copy of the code."""

    protection: str
    file: str
    code: str
    """Stands there exactly once."""
    instead: str
    also: tuple[tuple[str, str, str], ...] = ()
    """File, code and what to put instead, where a second line of defence does the same."""
    kind: str
    """The kind of fault whose case must then fail, with seed 0."""
    notices: str
    """Part of the expected failure message, so that another failure does not count."""

    def edits(self) -> tuple[tuple[str, str, str], ...]:
        """All of them: file, code and what to put instead."""
        return ((self.file, self.code, self.instead), *self.also)


_LIMIT_S = 150.0
"""Without a protection a run may never end: this is long enough for one that does."""

MUTATIONS = (
    Mutation(
        protection="a repetition goes on until its report is written",
        file="tasks/planning/make_plan.py",
        code="            return last if last and _lacks_report(last) else repeated\n",
        instead="            return repeated\n",
        kind="flow with --refresh killed after its decision",
        notices="the next run decided on one more model",
    ),
    Mutation(
        protection="files are compared with the SHA-256 that was committed",
        file="storage/manifest.py",
        code="    return not_same if sha256 not in (None, file.sha256) else None\n",
        instead="    return None\n",
        also=(("storage/tables.py", "page_checksum_verification=True", "page_checksum_verification=False"),),
        kind="dataset file flipped",
        notices="did not end with exit code 1",
    ),
    Mutation(
        protection="a manifest holds its own digest",
        file="storage/manifest.py",
        code="    if found != found.signed():\n",
        instead="    if False:\n",
        kind="manifest flipped",
        notices="did not end with exit code 1",
    ),
    Mutation(
        protection="a checkpoint is verified before it is loaded",
        file="tasks/learning/checkpoint.py",
        code='    return meta == meta.model_copy(update={"sha256": digests}).signed()\n',
        instead="    return True\n",
        kind="checkpoint flipped",
        notices="was not trained again",
    ),
    Mutation(
        protection="each attempt has a fresh run folder",
        file="tasks/jobs/train/attempts.py",
        code="    number = max(checkpoint.attempts(scratch), default=0) + 1\n",
        instead='    return "attempt-1"\n',
        kind="torn snapshot of Ray Train",
        notices="did not succeed",
    ),
    Mutation(
        protection="training resumes from the newest checkpoint of any attempt",
        file="tasks/jobs/train/train_loop.py",
        code="    newest = checkpoint.fetch_newest(scratch, folder) if trainer.rank == 0 else None\n",
        instead="    newest = None\n",
        kind="controller killed",
        notices="training began again",
    ),
    Mutation(
        protection="the watchdog and the collectives' time-out end a worker that makes no progress",
        file="tasks/jobs/train/worker.py",
        code="                os._exit(EXIT_CODE)\n",
        instead="                pass\n",
        also=(("tasks/jobs/train/job.py", "timeout_s=max(1, int(spec.stall_s)),", "timeout_s=1800,"),),
        kind="rank stuck in a step",
        notices="waiting until the run ended",
    ),
    Mutation(
        protection="three ranks add up gradients in an order that no restart changes",
        file="tasks/learning/step.py",
        code="find_unused_parameters=is_fixed or finds_unused,\n            static_graph=is_static and not is_fixed,",
        instead="find_unused_parameters=finds_unused,\n            static_graph=is_static,",
        kind="worker killed in mid-epoch: resident, 3 workers",
        notices="the weights differ",
    ),
    Mutation(
        protection="the random numbers of a model depend only on seed, epoch, step and rank",
        file="tasks/learning/loop.py",
        code="            seed_everything(mixed_seed(self.recipe.seed, epoch, step, self.rank, _DRAWS))\n",
        instead="",
        kind="worker killed: a model with dropout",
        notices="the weights differ",
    ),
    Mutation(
        protection="a lease keeps a second flow from doing the same work",
        file="storage/lease_records.py",
        code="        return not self.released and at < self.expires and not self.process.has_ended()\n",
        instead="        return False\n",
        kind="two flows at once",
        notices="work was done twice",
    ),
    Mutation(
        protection="garbage collection keeps what a live run uses",
        file="storage/admin/gc.py",
        code="                self._needs.keep(record.used(self._root))\n",
        instead="                pass\n",
        kind="garbage collected while a flow is frozen in promote",
        notices="what a live run uses was collected",
    ),
    Mutation(
        protection="garbage collection moves a folder aside before it deletes it",
        file="storage/admin/gc.py",
        code="            os.rename(removal.uri, aside)\n",
        instead="            pass\n",
        also=(("storage/admin/gc.py", "        files.remove(aside)\n", "        files.remove(removal.uri)\n"),),
        kind="garbage collection frozen as it deletes, thawed after a run made the same results",
        notices="No such file",
    ),
    Mutation(
        protection="garbage collection sends no request once its lease has lapsed",
        file="storage/s3.py",
        code="    if has_lapsed():\n        raise _Lapsed\n",
        instead="",
        kind="S3: 503 to garbage collection for 100 s, while a run makes the same results",
        notices="No such file",
    ),
    Mutation(
        protection="transient errors of S3 are retried",
        file="storage/s3.py",
        code="        return retrying(request)\n",
        instead="        return request()\n",
        kind="S3: 503 on commit",
        notices="did not survive the fault",
    ),
    Mutation(
        protection="a result made from earlier bytes of its parents is not reused",
        file="tasks/planning/result_uris.py",
        code="    if not contents or _may_be_made_from(contents, usual):\n",
        instead="    if True:\n",
        kind="checkpoint removed and trained again on another machine",
        notices="the predictions differ",
    ),
    Mutation(
        protection="manifests and decisions refer to results by paths relative to the root",
        file="storage/reference.py",
        code="    return relative if base is not None and is_same(base, root) else str(uri)\n",
        instead="    return str(uri)\n",
        kind="root moved in mid-training",
        notices="root-moved/datasets/prepared",
    ),
    Mutation(
        protection="a non-finite loss ends training",
        file="tasks/learning/loop.py",
        code="        if not math.isfinite(values[0]):\n",
        instead="        if False:\n",
        kind="training diverges",
        notices="did not end with exit code 1",
    ),
    Mutation(
        protection="everything that a flow started ends with it, even after SIGKILL",
        file="tasks/runners/supervise.py",
        code="        if readable and not os.read(sys.stdin.fileno(), 1024):\n",
        instead="        if False:\n",
        kind="flow killed in train",
        notices="what the flow had started ended with it",
    ),
    Mutation(
        protection="events are derived from the registry",
        file="tasks/promote.py",
        code="        announce(plan.root, plan.registered_model, decisions)\n",
        instead="            announce(plan.root, plan.registered_model, decisions)\n",
        kind="flow killed between decision and event",
        notices="waiting until an event reports the promotion",
    ),
    Mutation(
        protection="downloads are compared with the published checksums",
        file="tasks/learning/downloading.py",
        code="        if found != expected:\n",
        instead="        if False:\n",
        kind="download tampered",
        notices="ended before",
    ),
    Mutation(
        protection="the content of a row decides whether it is a training or a validation row",
        file="tasks/jobs/preprocess/job.py",
        code='    key = random_keys(train["digest"].to_numpy(np.int64), seed=split_seed)\n',
        instead='    key = random_keys(train["id"].to_numpy(np.int64), seed=split_seed)\n',
        kind="data grows before a warm start",
        notices="had been training rows of the champion",
    ),
    Mutation(
        protection="a crashed run of a deployment is restarted",
        file="flows/server/watch.py",
        code="    if num_restarts < MAX_RESTARTS:\n",
        instead="    if False:\n",
        kind="flow of a deployment killed",
        notices="waiting until the run was started again",
    ),
    Mutation(
        protection="a deadline interrupts a blocking call",
        file="tasks/jobs/deadline.py",
        code="    left, every = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)\n",
        instead="    left, every = 0.0, 0.0\n",
        kind="deadline passes in the flow",
        notices="waiting until the run ended",
    ),
)


def check(folder: Path, console: Console, *, only: Sequence[str] = ()) -> int:
    """0 when each protection, switched off, is missed by a case, and the list of them is printed.

    `only`: kinds of fault; empty: every mutation is carried out.
    """
    unnoticed = 0
    chosen = [mutation for mutation in MUTATIONS if not only or mutation.kind in only]
    with harness.prepared(folder) as made:
        for mutation in chosen:
            started = time.monotonic()
            made.checkout = _mutated(mutation, folder / "mutated")
            outcome = carry_out(made, mutation.kind, KINDS[mutation.kind].scenario, seed=0, limit_s=_LIMIT_S)
            noticed = mutation.notices in outcome.problem
            unnoticed += not noticed
            verdict = "detected" if noticed else "NOT DETECTED"
            problem = outcome.problem.splitlines()[0] if outcome.problem else "survived"
            line = f"{verdict}: without '{mutation.protection}', {mutation.kind!r} ({time.monotonic() - started:.0f} s)"
            console.print(line, f"  {problem[:140]}", sep="\n", markup=False, highlight=False)
    console.print(f"{len(chosen) - unnoticed} of {len(chosen)} were detected", highlight=False)
    return 1 if unnoticed else 0


def _mutated(mutation: Mutation, folder: Path) -> Path:
    """A copy of the code without the protection."""
    shutil.rmtree(folder, ignore_errors=True)
    for package in ("flows", "tasks", "storage"):
        shutil.copytree(CHECKOUT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "prefect.yaml", folder)
    for file, code, instead in mutation.edits():
        content = (folder / file).read_text()
        assert content.count(code) == 1, f"{file} has no such code once: {code!r}"
        (folder / file).write_text(content.replace(code, instead))
    return folder
