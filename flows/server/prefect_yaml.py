"""The deployments that prefect.yaml declares, read and checked without a server."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows import PROJECT

CHECKOUT = Path(__file__).resolve().parents[2]
Declared = dict[tuple[str, str], dict[str, Any]]
"""Deployments of prefect.yaml, by entrypoint and name."""


def read() -> Declared:
    """Read the deployments by entrypoint and name; raise `ValueError` for an invalid or untagged one."""
    found = {}
    for one in _file()["deployments"]:
        place = f"prefect.yaml: deployment {one.get('name')!r}"
        if missing := {"name", "entrypoint", "work_pool"} - one.keys():
            raise ValueError(f"{place} needs {', '.join(sorted(missing))}")
        if PROJECT not in one.get("tags", []):
            raise ValueError(f"{place} needs the tag {PROJECT!r}, which marks this project's deployments")
        for schedule in one.get("schedules") or []:
            _check_schedule(place, schedule)
        found[one["entrypoint"], one["name"]] = one
    return found


def check_parameters(wanted: Declared) -> None:
    """Raise `ValueError` for a parameter that its flow would refuse; imports the flows, which takes seconds."""
    from prefect import Flow
    from prefect.exceptions import MissingFlowError, ScriptError
    from prefect.flows import load_flow_from_entrypoint
    from prefect.utilities.callables import parameter_schema
    from prefect.utilities.schema_tools.validation import ValidationError, validate

    for (entrypoint, name), one in wanted.items():
        place = f"prefect.yaml: deployment {name!r} of {entrypoint}"
        try:
            flow: Flow[..., Any] = load_flow_from_entrypoint(str(CHECKOUT / entrypoint), use_placeholder_flow=False)
        except (MissingFlowError, ScriptError) as error:
            raise ValueError(f"{place}: entrypoint cannot be loaded: {error}") from None
        schema = parameter_schema(flow).model_dump_for_openapi()
        for where, parameters in _parameters(place, one):
            if unknown := sorted(parameters.keys() - schema["properties"].keys()):
                raise ValueError(f"{where}: parameters: {unknown[0]!r} is not one of {', '.join(schema['properties'])}")
            try:
                validate(parameters, schema, raise_on_error=True, ignore_required=True)
            except ValidationError as error:
                raise ValueError(f"{where}: parameters: {' '.join(str(error).split())}") from None


def _parameters(place: str, one: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the parameters of deployment `one` and those of its schedules, each with its place in the file."""
    usual = one.get("parameters") or {}
    yield place, usual
    for schedule in one.get("schedules") or []:
        yield f"{place}, schedule {schedule['slug']!r}", usual | (schedule.get("parameters") or {})


def _check_schedule(place: str, schedule: dict[str, Any]) -> None:
    from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
    from pydantic import ValidationError

    if not schedule.get("slug"):
        raise ValueError(f"{place}: every schedule needs a slug (its name)")
    try:
        if "cron" in schedule:
            CronSchedule(cron=schedule["cron"], timezone=schedule.get("timezone"))
        if "interval" in schedule:
            IntervalSchedule(interval=schedule["interval"])
    except ValidationError as error:
        what = error.errors(include_url=False)[0]["msg"]
        raise ValueError(f"{place}: schedule {schedule['slug']!r} cannot be read: {what}") from None


def _file() -> dict[str, Any]:
    import yaml

    try:
        content: dict[str, Any] = yaml.safe_load((CHECKOUT / "prefect.yaml").read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"prefect.yaml cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or "deployments" not in content:
        raise ValueError("prefect.yaml has no deployments; add at least one")
    return content
