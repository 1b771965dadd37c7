"""Prefect options of all tasks and flows: no caching (storage shows what is done), no pickling, readable run names."""

from collections.abc import Mapping
from typing import Any

from prefect.cache_policies import NO_CACHE
from prefect.runtime import deployment, flow_run

from storage.producer import user
from storage.uri import redact


def run_name() -> str:
    """Return the name of the current flow run, such as `cifar10-vit epochs=3 learning_rate=0.1`."""
    return named(flow_run.parameters)


flow_options: dict[str, Any] = {"flow_run_name": run_name, "result_serializer": "json"}
"""Options of every flow."""
task_options: dict[str, Any] = {"cache_policy": NO_CACHE, "persist_result": False, "result_serializer": "json"}
"""Options of every task; results are not persisted, because tasks return URIs of committed results."""


def named(parameters: Mapping[str, Any]) -> str:
    """Name a run by its `parameters`: recipe, data and main settings, or model and dataset.

    Accepts invalid parameters; the flow reports them.
    """
    if "recipe" not in parameters:
        words = [_last(parameters.get("model")), "on", _last(parameters.get("dataset")), parameters.get("split")]
    else:
        words = [_last(parameters["recipe"])]
        words += ["on", _last(parameters["data"])] if parameters.get("data") else []
        words += [f"{field}={value}" for field, value in _settings(parameters).items()]
        words += [f"championship={parameters['championship']}"] if parameters.get("championship") else []
        words += ["refresh"] if parameters.get("refresh") else []
    if parameters.get("workers") is not None:
        words.append(f"workers={parameters['workers']}")
    return " ".join(" ".join(str(word) for word in words if word).split())[:200]  # a setting may be any text


def _settings(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the recipe's main and changed fields; for a recipe from the user's own file, only the changed ones."""
    from tasks.learning import recipes

    name, given = parameters["recipe"], parameters.get("settings")
    changed = dict(given) if isinstance(given, Mapping) else {}
    try:
        recipe = recipes.load(name) if name in recipes.known() else None
    except ValueError:  # the flow reports it
        recipe = None
    if recipe is None:
        return changed
    return {"epochs": recipe.epochs, "learning_rate": recipe.learning_rate} | changed


def _last(place: str | None) -> str:
    """Return the last part of a path or URI, which contains no credentials."""
    return redact(str(place)).rstrip("/").rpartition("/")[2]


def author() -> str:
    """Return the author of a decision: the deployment, else the user, and the flow run if there is one."""
    who = f"deployment {flow_run.flow_name}/{deployment.name}" if deployment.id else user()
    return f"{who}, run {flow_run.name}" if flow_run.id else who
