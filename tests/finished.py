"""Two finished runs on a user's photographs, for the tests of what comes after a run: to look at, or to copy."""

import functools
import os
import shutil
from pathlib import Path
from typing import Any, Self

from filelock import FileLock
from pydantic import BaseModel, ConfigDict

from storage import registry
from storage.decision import Decision
from storage.kinds import ReportURI
from storage.uri import Root
from tasks.learning import recipes
from tasks.orchestration.prefect_options import author
from tasks.planning import make_plan
from tasks.planning.plan import Plan
from tasks.promotion.gate import judge, resolved
from tasks.report import Run, gather, report, with_pictures
from tasks.report_page import ReportData
from tests.image_folder import write_folder
from tests.ingested import evaluated, run
from tests.runs import SHARED

_SETTINGS = {"image_size": 24, "model": "small-cnn", "batch_size": 8, "precision": "fp32", "max_quarantined": 0.5}


class Finished(BaseModel):
    """A run whose model was not promoted, and before it the run of the champion, which gets each test row right."""

    model_config = ConfigDict(frozen=True)

    photos: Path
    """The user's folder; `deleted` is no longer there."""
    champion: Plan
    plan: Plan
    decision: Decision
    report: ReportURI

    @property
    def root(self) -> Root:
        """Where all results of both runs are."""
        return self.plan.root

    @property
    def run(self) -> Run:
        """What the report is about."""
        plan = self.plan
        return Run(plan.evaluate.target, self.decision, plan.recipe, plan.registered_model, command=plan.command)

    @functools.cached_property
    def data(self) -> ReportData:
        """All that is on the page of the report."""
        return with_pictures(self.run, gather(self.run))

    @property
    def deleted(self) -> str:
        """Path of a test image, the worst mistake, that was deleted after the runs."""
        return str(self.data.mistakes[0]["name"])

    def at(self, root: Path) -> Self:
        """Return the same runs as they are found in another storage root."""
        return type(self).model_validate_json(self.model_dump_json().replace(str(self.root), str(root)))

    def copy_to(self, root: Path) -> Self:
        """Return the same runs in a storage root of the test's own."""
        shutil.copytree(self.root, root)
        return self.at(root)


def finished_runs() -> Finished:
    """Make the runs, or find those of another pytest worker."""
    folder = Path(os.environ[SHARED])
    done = folder / "finished.json"
    with FileLock(folder / "finished.lock"):
        if not done.exists():
            done.write_text(_make(folder / "finished").model_dump_json())
    return Finished.model_validate_json(done.read_text())


def _make(folder: Path) -> Finished:
    photos = write_folder(folder / "photos", test=40)
    of_pears = photos / "test/pears"
    shutil.copy(of_pears / "photo 7.png", of_pears / "again.png")
    shutil.copy(of_pears / "photo 14.png", photos / "train/rote Äpfel/near.png")

    def plan(**settings: Any) -> Plan:
        recipe = recipes.override(recipes.load("images-resnet18"), _SETTINGS | settings)
        return make_plan.make_plan(storage=str(folder / "root"), recipe=recipe, data=str(photos), workers=0)

    champion = plan(epochs=8)
    assert run(champion).promoted
    challenger = plan(epochs=2, learning_rate=1e-4)
    recipe, model, evaluation = challenger.recipe, challenger.registered_model, evaluated(challenger)
    decisions, gate = registry.history(challenger.root, model), resolved(recipe.gate, challenger.train.target)
    decision = judge(challenger.train.target, evaluation, decisions, champion.evaluate.target, gate).made_by(author())
    registry.append(challenger.root, model, decision)
    page = report.fn(evaluation, decision, recipe, model, command=challenger.command)
    finished = Finished(photos=photos, champion=champion, plan=challenger, decision=decision, report=page)
    (photos / finished.deleted).unlink()
    return finished
