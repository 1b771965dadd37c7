"""Prefect options of all tasks and flows: no caching (storage shows what is done), no pickling, readable run names.

The types of a deployment's parameters add only schema, with which Prefect's server validates and its UI builds a form.
Values are checked where they are used, with the same messages for every way to start the flow. The title of an
alternative is its button in the form; an error describes the alternative whose type fits.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from prefect.cache_policies import NO_CACHE
from prefect.runtime import deployment, flow_run
from pydantic import Field

from storage.producer import user
from storage.uri import redact
from tasks.learning import recipes
from tasks.planning.durations import PATTERN

# Only the first alternative has a type, so that an error lists the recipes. The type is a list, because otherwise the
# form returns to this alternative with each character typed into the other. The parameter's own type rejects numbers.
_KNOWN = {"title": "of the project", "type": ["string", "null"], "enum": recipes.known()}
_OUTSIDE = {"title": "of a file", "pattern": r".:[A-Za-z_][A-Za-z0-9_]*$"}

RecipeName = Annotated[str | None, Field(json_schema_extra={"type": ["string", "null"], "anyOf": [_KNOWN, _OUTSIDE]})]
"""A recipe of the project, `path.py:function`, `folder:function`, or None for that of the flow's data set."""
_Count = Annotated[int, Field(json_schema_extra={"title": "number", "minimum": 0})]
Workers = _Count | None
"""Number of workers; None: chosen by GPUs and batch."""
Cores = Annotated[int, Field(json_schema_extra={"title": "number", "minimum": 1})] | None
"""Number of the machine's cores; None: all."""
Settings = Annotated[dict[str, Any], Field(json_schema_extra=recipes.schema() | {"title": "fields"})] | None
Name = Annotated[str, Field(json_schema_extra={"title": "name", "pattern": r"^([a-z0-9][a-z0-9-]{0,63})?$"})] | None
Duration = Annotated[str, Field(json_schema_extra={"pattern": PATTERN})]
"""A number with a unit: `30s`, `10m`, `2h` or `1d`."""


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
    """Name a run by its `parameters`, valid or not: recipe, data and changed settings, or model and dataset."""
    if "recipe" not in parameters:
        words = [_last(parameters.get("model")), "on", _last(parameters.get("data")), parameters.get("split")]
    else:
        words = [_last(parameters["recipe"])]
        words += ["on", _last(parameters["data"])] if parameters.get("data") else []
        settings = parameters.get("settings")
        words += [f"{field}={value}" for field, value in settings.items()] if isinstance(settings, Mapping) else []
        words += [f"register_as={parameters['register_as']}"] if parameters.get("register_as") else []
        words += ["refresh"] if parameters.get("refresh") else []
    if parameters.get("workers") is not None:
        words.append(f"workers={parameters['workers']}")
    return " ".join(" ".join(str(word) for word in words if word).split())[:200]  # a setting may be any text


def _last(place: str | None) -> str:
    """Return the last part of a path or URI, which contains no credentials."""
    return redact(str(place)).rstrip("/").rpartition("/")[2]


def author() -> str:
    """Return the author of a decision: the deployment, else the user, and the flow run if there is one."""
    who = f"deployment {flow_run.flow_name}/{deployment.name}" if deployment.id else user()
    return f"{who}, run {flow_run.name}" if flow_run.id else who
