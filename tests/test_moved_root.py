"""A storage root that was moved, or is reached through a link: all results are found and used."""

from pathlib import Path

import pytest

from storage import registry
from storage.decision import Decision
from storage.uri import Root
from tasks import report as report_task
from tasks.learning import inference, recipes
from tasks.orchestration.stage import Step, using
from tasks.planning import make_plan, model_requests
from tasks.planning.plan import Plan
from tests import ingested


def request(root: Root, **changes: object) -> Plan:
    """What every run here asks for."""
    settings = {"model": "small-cnn", "epochs": 1, "minimum": 0.0, "precision": "fp32", **changes}
    recipe = recipes.override(recipes.load("mnist-sample-resnet18"), settings)
    return make_plan.make_plan(storage=root, recipe=recipe, workers=0)


def run(asked: Plan) -> tuple[list[Step], Decision]:
    """Every stage, in this process."""
    with using(asked.root, asked.uses) as stages:
        return stages, ingested.run(asked)


def test_a_run_finds_all_of_a_root_that_lies_elsewhere_now(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report_task, "publish", lambda *_, **__: None)  # nothing is told to a Prefect server
    first = Root(f"{tmp_path}/first")
    stages, made = run(request(first))
    assert made.promoted and not any(stage.reused for stage in stages)

    (tmp_path / "first").rename(tmp_path / "moved")
    (tmp_path / "link").symlink_to(tmp_path / "moved")
    for root in (Root(f"{tmp_path}/moved"), Root(f"{tmp_path}/link")):
        asked = request(root)
        again, decision = run(asked)
        assert [stage.name for stage in again if not stage.reused] == []
        assert [str(stage.uri).replace(root, first) for stage in again] == [str(stage.uri) for stage in stages]
        assert decision.number == 1 and len(registry.history(root, "mnist-sample")) == 1
        assert registry.champion(root, "mnist-sample") == asked.train.target

        resolved = model_requests.resolve_prediction(
            storage=root, model="champion", data=asked.train.prepared, split="test", workers=0
        )
        assert resolved.predict.checkpoint == asked.train.target and not resolved.needs_ray
        assert request(root, start="champion").train.initial == asked.train.target
        assert inference.load("champion:mnist-sample", storage=root).classes == tuple("0123456789")
