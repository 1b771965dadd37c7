"""Messages of a deployment's run about invalid parameters, errors and cancellations, and the parameters it accepts."""

import logging
import uuid
from pathlib import Path
from typing import Any

import pytest

from flows.pipeline import mnist
from flows.server import flow_runs


def test_a_run_of_the_command_line_carries_out_the_plan_that_is_made_and_does_not_plan(prefect_server: None) -> None:
    ran: list[str] = []
    flow = flow_runs.planned(mnist, lambda: ran.append("the plan"))
    flow(storage="/a/folder/that/cannot/be/made", settings={"epochs": 5})  # its own planning would refuse this
    assert (ran, flow.name, flow.parameters) == (["the plan"], mnist.name, mnist.parameters)


def test_a_deployments_run_refuses_in_one_line_without_a_traceback(
    prefect_server: None, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", str(uuid.uuid4()))
    for name in ("prefect", "prefect.flow_runs", "prefect.task_runs"):
        monkeypatch.setattr(logging.getLogger(name), "propagate", True)
        monkeypatch.setattr(logging.getLogger(name), "filters", [])
    state: Any = mnist(workers=-1, storage=str(tmp_path), return_state=True)
    assert state.is_failed() and state.message.startswith("--workers must be >= 0 ")
    messages = [record.getMessage() for record in caplog.records if "workers must" in record.getMessage()]
    assert set(messages) == {f"Finished in state Failed({state.message!r})"}
    assert not any(record.exc_info for record in caplog.records)
