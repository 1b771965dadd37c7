"""Prefect options of all tasks and flows: no caching (storage shows what is done), no pickling, readable run names.

Also flows that have their plan already, and the state of those whose parameters are invalid.
"""

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

from prefect import State
from prefect.cache_policies import NO_CACHE
from prefect.runtime import deployment, flow_run
from prefect.states import Failed

from storage.producer import user
from storage.uri import redact

T = TypeVar("T")


def run_name() -> str:
    """Return the name of the current flow run, such as `cifar10-vit epochs=3`."""
    parameters = flow_run.parameters
    if "recipe" in parameters and not parameters["recipe"]:
        parameters = parameters | {"recipe": flow_run.flow_name}
    return name_run(parameters)


flow_options: dict[str, Any] = {"flow_run_name": run_name, "result_serializer": "json"}
"""Options of every flow."""
task_options: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False, "result_serializer": "json"}
"""Options of every task; results are not persisted, because tasks return URIs of committed results."""


def name_run(parameters: Mapping[str, Any]) -> str:
    """Name a run by its `parameters`, valid or not: recipe or model, data, and changed settings."""
    words = [_last(parameters["recipe"] if "recipe" in parameters else parameters.get("model"))]
    words += ["on", _last(parameters["data"])] if parameters.get("data") else []
    settings = parameters.get("settings")
    words += [f"{field}={value}" for field, value in settings.items()] if isinstance(settings, Mapping) else []
    return " ".join(" ".join(words).split())[:200]  # a setting may be any text


def _last(place: str | None) -> str:
    """Return the last part of a path or URI, which contains no credentials."""
    return redact(str(place)).rstrip("/").rpartition("/")[2]


def author() -> str:
    """Return the author of a decision: the deployment, else the user, and the flow run if there is one."""
    who = f"deployment {flow_run.flow_name}/{deployment.name}" if deployment.id else user()
    return f"{who}, run {flow_run.name}" if flow_run.id else who


def refused(error: ValueError) -> State[Any]:
    """Return the state of a deployment's run with invalid parameters: one line in its log; else raise `error`."""
    if not deployment.id:
        raise error
    # The state says it all; Prefect's engine would add the traceback of its own exception.
    logging.getLogger("prefect.flow_runs").addFilter(lambda record: record.exc_info is None)
    return Failed(message=str(error))
