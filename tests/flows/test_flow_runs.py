"""Messages of a deployment's run about invalid parameters, errors and cancellations, and the parameters it accepts."""

import logging
import uuid
from pathlib import Path
from typing import Any

import pytest
from prefect.utilities.callables import parameter_schema
from prefect.utilities.schema_tools.validation import ValidationError, validate

from flows.pipeline import mnist
from flows.predict import predict
from flows.server import flow_runs
from tasks.learning import recipes


def test_a_run_of_the_command_line_carries_out_the_plan_that_is_made_and_does_not_plan(prefect_server: None) -> None:
    ran: list[str] = []
    flow = flow_runs.planned(mnist, lambda: ran.append("the plan"))
    flow(storage="/a/folder/that/cannot/be/made", settings={"epochs": 5})  # its own planning would refuse this
    assert (ran, flow.name, flow.parameters) == (["the plan"], mnist.name, mnist.parameters)


@pytest.mark.parametrize(
    ("option", "parameter"),
    [
        ("--workers must be >= 0, got -1", "workers must be >= 0, got -1"),
        ("--set: no recipe field is called 'x'", "settings: no recipe field is called 'x'"),
        ("give --model champion:NAME", "give model champion:NAME"),
        ("s3://bucket/a--b is no folder", "s3://bucket/a--b is no folder"),
    ],
)
def test_options_become_the_parameters_of_a_deployment(option: str, parameter: str) -> None:
    assert flow_runs.in_parameters(option) == parameter


@pytest.mark.parametrize(
    ("parameters", "says"),
    [
        ({"recipe": "nonsense"}, f"is not one of {recipes.known()}"),
        ({"recipe": 5}, "'recipe'"),
        ({"settings": {"epochs": "five"}}, "'settings.epochs'"),
        ({"settings": {"epoch": 5}}, "'epoch' was unexpected"),
        ({"settings": {"flip": "vertical"}}, "'vertical' is not one of ['none', 'horizontal']"),
        ({"workers": -1}, "less than the minimum of 0"),
        ({"stage_timeout": "5"}, "'stage_timeout'"),
        ({"register_as": "My Own"}, "does not match"),
    ],
)
def test_a_wrong_parameter_is_refused_by_its_schema(parameters: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError) as refused:
        validate(parameters, _schema(mnist), raise_on_error=True)
    assert says in str(refused.value)


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"recipe": "/srv/my_recipe.py:recipe", "register_as": "mine", "data": "s3://bucket/photos"},
        {"workers": 0, "settings": {"epochs": 5, "learning_rate": 1e-3, "precision": "bf16", "channels": 1}},
        {"workers": None, "settings": None, "register_as": None},
    ],
)
def test_what_a_deployment_may_be_asked_for_fits_its_schema(parameters: dict[str, Any]) -> None:
    validate(parameters, _schema(mnist), raise_on_error=True)
    validate({"data": "data/datasets/raw/x", "workers": 2}, _schema(predict), raise_on_error=True)


def test_every_recipe_fits_the_schema_of_its_settings() -> None:
    fields, schema = recipes.schema()["properties"], _schema(mnist)
    for name in recipes.known():
        values = recipes.flat(recipes.load(name).to_dict())
        settings = {field: value for field, value in values.items() if field in fields}
        validate({"settings": settings}, schema, raise_on_error=True)


def test_every_alternative_of_the_form_has_a_name_and_the_layout_of_a_folder_is_code() -> None:
    for each in (mnist, predict):
        for field in _schema(each)["properties"].values():
            assert all(one.get("title") or one["type"] for one in field.get("anyOf", [])), field
    data = _schema(mnist)["properties"]["data"]["description"]
    assert "`train/<class>/*.png`" in data  # elsewhere in Markdown <class> is a tag, which is not shown


def _schema(flow: Any) -> dict[str, Any]:
    found: dict[str, Any] = parameter_schema(flow).model_dump()
    return found


def test_a_deployments_run_refuses_in_one_line_without_a_traceback(
    prefect_server: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", str(uuid.uuid4()))
    for name in ("prefect", "prefect.flow_runs", "prefect.task_runs"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        monkeypatch.setattr(logging.getLogger(name), "filters", [])
    state: Any = mnist(workers=-1, storage=str(tmp_path), return_state=True)
    assert state.is_failed() and state.message.startswith("workers must be >= 0 ")
    messages = [record.getMessage() for record in caplog.records if "workers must" in record.getMessage()]
    assert set(messages) == {f"Finished in state Failed({state.message!r})"}
    assert not any(record.exc_info for record in caplog.records)
