"""Two machines that are given the same run both work; the first result counts, and nothing is lost or left behind.

`TWO_MACHINES_ROUNDS=20` plays more rounds.
"""

import json
import multiprocessing
import os
import random
import tempfile
import time
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import pytest

from flows.__main__ import main
from storage import files, manifest, registry
from storage.admin import catalog
from storage.admin.gc import Garbage
from storage.uri import Root
from tests.image_folder import BROKEN, write_folder
from tests.runs import await_that

ROUNDS = int(os.environ.get("TWO_MACHINES_ROUNDS", "1"))
_LONGEST_S = 8.0
"""Longest time after its first write for which a process lives that is killed; a whole run takes a few seconds."""
_MOST_KILLS = 3
"""Of one machine in one round."""
_DAY_S = 24 * 3600
_MODEL = "photos"
_SETTINGS = {"model": "small-cnn", "image_size": 32, "epochs": 3, "batch_size": 8, "precision": "fp32", "minimum": 0.0}


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_two_machines_that_are_killed_come_to_one_result_and_leave_nothing_behind(
    each_root: Root, tmp_path: Path, number: int
) -> None:
    chance = random.Random(number)
    images = write_folder(tmp_path / "images", train=8, test=3)
    for path in BROKEN:
        (images / path).unlink()
    machines = [_Machine(each_root, images, tmp_path / name, chance) for name in ("first", "second")]
    try:
        await_that(lambda: not [machine for machine in machines if not machine.is_done()], interval_s=0.05)
    finally:
        for machine in machines:
            machine.process.kill()
    first, second = (json.loads(machine.outcome.read_text()) for machine in machines)
    assert first == second, "the two came to different results"
    assert len(registry.history(each_root, _MODEL)) == 1
    assert main(["verify", "--deep", "--storage", each_root]) == 0
    garbage = Garbage(each_root, keep_days=1, now=time.time() + 8 * _DAY_S)
    list(garbage.remove(garbage.find()))
    left = {entry.path for entry in files.walk(each_root)}
    assert not left ^ _belonging(each_root), f"gc left something behind: {sorted(left ^ _belonging(each_root))}"


class _Machine:
    """A machine that carries out the run, and begins again when its process was killed."""

    def __init__(self, root: Root, images: Path, folder: Path, chance: random.Random) -> None:
        folder.mkdir(parents=True)
        self.outcome, self._begun = folder / "outcome.json", folder / "begun"
        access = {name: value for name, value in os.environ.items() if name.startswith("AWS_")}
        self._arguments = (root, images, folder, access)
        self._chance = chance
        self._kills_left = chance.randrange(_MOST_KILLS + 1)
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "tests.ingested", "botocore.session", "torch"])
        self._begun.unlink(missing_ok=True)
        self.process: ForkServerProcess = context.Process(target=_carry_out, args=self._arguments, daemon=True)
        self.process.start()
        self._lives_s = self._chance.uniform(0.0, _LONGEST_S) if self._kills_left else float("inf")

    def is_done(self) -> bool:
        """Return whether its run has succeeded; kill its process if it is time."""
        lived_s = time.time() - self._begun.stat().st_mtime if self._begun.exists() else 0.0
        if self.process.exitcode is None and lived_s > self._lives_s:
            self.process.kill()
            self.process.join()
            self._kills_left -= 1
            self._start()
        assert not self.process.exitcode, "a run failed"
        return self.process.exitcode == 0


def _carry_out(root: str, images: Path, folder: Path, access: dict[str, str]) -> None:
    """Carry out the run as the flow does; write the digest of each result's manifest to `outcome.json` in `folder`."""
    from tasks.learning import recipes
    from tasks.orchestration.stage import using
    from tasks.planning.make_plan import make_plan
    from tasks.resources import machine
    from tasks.runners.session import session
    from tests import ingested

    machine.choose(1)
    os.environ.update(access, TMPDIR=str(folder))
    tempfile.tempdir = str(folder)
    recipe = recipes.override(recipes.load("images-resnet18"), _SETTINGS)
    plan = make_plan(storage=root, recipe=recipe, data=str(images), registered_model=_MODEL, workers=0)
    with (
        pytest.MonkeyPatch.context() as patch,
        using(plan.root, plan.uses) as stages,
        session(wanted=False, workers=0) as runner,
    ):
        patch.setattr("tasks.report.publish", lambda *_, **__: None)
        (folder / "begun").touch()
        ingested.run(plan, runner)
    digests = {stage.uri: manifest.load(stage.uri).digest for stage in stages if stage.uri}
    (folder / "outcome.json").write_text(json.dumps(digests))


def _belonging(root: Root) -> set[str]:
    """Return the paths of all files of the registry and of committed results."""
    paths = {f"registry/{entry.path}" for entry in files.walk(root.child("registry"))}
    for folder in catalog.read_folders(catalog.list_folders(root)):
        names = [manifest.NAME, *(file.path for file in folder.manifest.files)] if folder.manifest else []
        paths |= {folder.uri.child(name).removeprefix(f"{root}/") for name in names}
    return paths
