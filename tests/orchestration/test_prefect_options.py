"""Names of flow runs, the plans that they carry out, and their messages about invalid parameters."""

import logging
import uuid
from pathlib import Path
from typing import Any

import pytest
from prefect import State
from prefect.client.schemas.objects import StateType

from flows import pipeline
from flows.cli import preflight
from tasks.orchestration.prefect_options import name_run
from tasks.orchestration.summary import outcome
from tasks.planning.plan import Plan


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        ({"recipe": "/a/mine.py:recipe", "settings": {"epochs": 5}, "workers": 0}, "mine.py:recipe epochs=5"),
        ({"recipe": "images", "data": "s3://b/flowers/", "settings": {"seed": 5}}, "images on flowers seed=5"),
        ({"recipe": "mnist-resnet18", "data": "s3://key:secret@bucket"}, "mnist-resnet18 on ***@bucket"),
        ({"recipe": "a", "settings": {"epochs": "5\n" * 500}}, ("a epochs=" + "5 " * 500)[:200]),
        ({"model": "champion:a", "data": "s3://b/datasets/raw/mnist-0164"}, "champion:a on mnist-0164"),
    ],
)
def test_a_run_is_called_by_its_recipe_and_changed_settings(parameters: dict[str, Any], name: str) -> None:
    assert name_run(parameters) == name


@pytest.mark.parametrize(
    ("verdict", "reused", "name"),
    [("promoted", False, "Promoted"), ("rejected", False, "Rejected"), ("unchanged", True, "NothingNew")],
)
def test_a_training_of_a_deployment_ends_in_a_state_named_after_the_decision(
    monkeypatch: pytest.MonkeyPatch, verdict: str, reused: bool, name: str
) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "1")
    state = outcome({"verdict": verdict, "reason": "it is better", "stages": [{"reused": reused}]})
    assert isinstance(state, State) and (state.type, state.name) == (StateType.COMPLETED, name)


def test_a_command_passes_its_plan_to_the_flow_which_does_not_plan_again(
    prefect_server: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[object] = []
    monkeypatch.setattr(pipeline, "run", ran.append)
    plan = Plan.model_construct()
    with preflight.passing(plan):
        pipeline.mnist(recipe="mnist-resnet18", storage="/a/folder/that/cannot/be/made", workers=-1)
    assert ran == [plan]


def test_a_deployments_run_refuses_in_one_line_without_a_traceback(
    prefect_server: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", str(uuid.uuid4()))
    for name in ("prefect", "prefect.flow_runs", "prefect.task_runs"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        monkeypatch.setattr(logging.getLogger(name), "filters", [])
    state: Any = pipeline.mnist(workers=-1, storage=str(tmp_path), return_state=True)
    assert state.is_failed() and state.message.startswith("--workers must be >= 0 ")
    messages = [record.getMessage() for record in caplog.records if "workers must" in record.getMessage()]
    assert set(messages) == {f"Finished in state Failed({state.message!r})"}
    assert not any(record.exc_info for record in caplog.records)
