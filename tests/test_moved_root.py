"""A storage root that was moved, or is reached through a link: all results are found and used."""

from pathlib import Path

from storage import registry
from tasks.learning import inference, recipes
from tasks.orchestration.stage import using
from tasks.planning import make_plan, model_requests
from tests.finished import Finished
from tests.image_folder import CLASSES
from tests.ingested import run


def test_a_run_finds_all_of_a_root_that_lies_elsewhere_now(finished: Finished, tmp_path: Path) -> None:
    moved = finished.copy_to(tmp_path / "moved")
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    for plan in (moved.champion, moved.at(tmp_path / "link").champion):
        with using(plan.root, plan.uses) as stages:
            decision = run(plan)
        assert [stage.name for stage in stages if not stage.reused] == [] and len(stages) == 8
        root, name = plan.root, plan.registered_model
        assert decision.number == 1 and len(registry.history(root, name)) == 2
        assert registry.champion(root, name) == plan.train.target
        resolved = model_requests.resolve_prediction(
            storage=root, model="champion", data=plan.train.prepared, split="test", workers=0
        )
        assert resolved.predict.checkpoint == plan.train.target and not resolved.needs_ray
        recipe = recipes.override(plan.recipe, {"start": "champion"})
        raw = str(plan.preprocess.raw)
        again = make_plan.make_plan(storage=root, recipe=recipe, data=raw, registered_model=name, workers=0)
        assert again.train.initial == plan.train.target
        assert inference.load(f"champion:{name}", storage=root).classes == CLASSES
