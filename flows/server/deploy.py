"""`data-to-model deploy`: check each deployment like a run, then call `prefect deploy --all`."""

import contextlib
import difflib
import inspect
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints
from urllib.parse import urlsplit

from pydantic import ValidationError, create_model

from flows import PROJECT
from flows.cli import preflight
from flows.cli.commands import RunOptions
from flows.server.temporary_server import check_api, require_named_server
from storage.admin import catalog
from storage.exits import refused_if_invalid
from storage.manifest import JSON
from storage.process import LOOPBACK
from storage.uri import parse_root
from tasks.images.option import default_recipe
from tasks.learning.variants import first_problem

CHECKOUT = Path(__file__).resolve().parents[2]
FILE, OWN_FILE = "prefect.yaml", "deployments.yaml"
"""The project's deployments, and the user's own in a file that git ignores."""
_NEEDED, _RHYTHM = ["name", "entrypoint", "work_pool"], ["cron", "timezone", "interval", "anchor_date", "rrule"]
_POOL = {"name": str, "work_queue_name": str, "job_variables": dict}
_SCHEDULE = dict.fromkeys([*_RHYTHM, "active", "day_or"], object) | {"slug": str, "parameters": dict}
_FIELDS = dict.fromkeys(["triggers", "concurrency_limit", "paused", "pull", "enforce_parameter_schema"], object)
_FIELDS |= {"name": str, "entrypoint": str, "description": str, "version": str, "parameters": dict}
_FIELDS |= {"tags": list, "work_pool": dict, "schedules": list}
"""Names and types in a deployment; Prefect's own classes of this form are not public, and ignore what is unknown."""


def main() -> int:
    """Check the deployments and the server, then register them; return 0, or exit with 2 if one is invalid."""
    require_named_server()
    with contextlib.chdir(CHECKOUT), refused_if_invalid():
        entries = read()
        check_api()
    print(apply(entries))
    return 0


def read() -> list[JSON]:
    """Return the deployments of both files; raise `ValueError` for one that is invalid, before a server is asked.

    The `definitions` of prefect.yaml are their defaults.
    """
    import yaml

    entries: list[JSON] = []
    definitions: JSON = {}
    for file in (FILE, *([OWN_FILE] if (CHECKOUT / OWN_FILE).exists() else [])):
        try:
            content = yaml.safe_load((CHECKOUT / file).read_bytes())
            definitions |= content.get("definitions", {})
            entries += (of_file := [definitions | entry for entry in content["deployments"]])
        except (OSError, ValueError, yaml.YAMLError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"{file}: no deployments can be read: {' '.join(str(error).split())}") from None
        for entry in of_file:
            try:
                _check(entry)
            except ValueError as error:
                where = f"{file}: deployment {entry.get('name')!r} of {entry.get('entrypoint')}"
                raise ValueError(f"{where}: {error}") from None
    return entries


def _check(entry: JSON) -> None:
    from prefect.client.schemas.schedules import construct_schedule
    from prefect.exceptions import PrefectException
    from prefect.flows import Flow, load_flow_from_entrypoint
    from prefect.settings import get_current_settings

    _check_fields(entry, _FIELDS, field="")
    if missing := [name for name in _NEEDED if not entry.get(name)]:
        raise ValueError(f"it needs {', '.join(missing)}")
    _check_fields(entry["work_pool"], _POOL, field="work_pool: ")
    if not entry["work_pool"].get("name"):
        raise ValueError("work_pool: it needs name")
    if PROJECT not in (entry.get("tags") or ()):
        raise ValueError(f"it needs the tag {PROJECT!r}, by which crashed runs are restarted")
    try:
        flow: Flow[..., object] = load_flow_from_entrypoint(entry["entrypoint"])
    except (ImportError, OSError, ValueError, PrefectException) as error:
        raise ValueError(f"entrypoint: {error}") from None
    allowed = dict.fromkeys(inspect.signature(flow.fn).parameters, object) | get_type_hints(flow.fn)
    schedules = entry.get("schedules") or []
    for schedule in schedules:
        _check_fields(schedule, _SCHEDULE, field="schedules: ")
        try:
            construct_schedule(**{name: schedule.get(name) for name in _RHYTHM})
        except ValidationError as error:
            raise ValueError(f"schedules: {first_problem(error)}") from None
    for schedule in ({}, *schedules):
        parameters = (entry.get("parameters") or {}) | (schedule.get("parameters") or {})
        parameters = {name: value for name, value in parameters.items() if value is not None}  # else its default
        _check_fields(parameters, allowed, field="parameters: ")
        if entry["entrypoint"].startswith("flows/pipeline.py:"):
            recipe = default_recipe(parameters.get("data"), flow=flow.name)
            preflight.check_request(RunOptions(**{"recipe": recipe} | parameters))
        name = str(parameters.get("data") or "/")
        data = parse_root(name, option="parameters: data")
        is_here = urlsplit(get_current_settings().api.url or "").hostname in LOOPBACK  # and so is the worker
        if is_here and not (data.is_s3 or os.path.exists(data) or catalog.NAME.fullmatch(name)):
            raise ValueError(f"parameters: data: nothing exists at {data}; create it, or correct the path")


def _check_fields(fields: object, types: Mapping[str, type], *, field: str) -> None:
    if not isinstance(fields, dict):
        raise ValueError(f"{field}each must be a dict, got {fields!r}; see prefect.yaml for the form")
    if unknown := [str(name) for name in fields if name not in types]:
        meant = difflib.get_close_matches(unknown[0], types, n=1)
        hint = f"did you mean {meant[0]!r}?" if meant else f"it is not one of {', '.join(types)}"
        raise ValueError(f"{field}there is no {unknown[0]!r}; {hint}")
    optional: dict[str, Any] = {name: (kind | None, None) for name, kind in types.items()}
    model = create_model("Fields", __config__={"arbitrary_types_allowed": True, "strict": True}, **optional)
    try:
        model.model_validate(fields)
    except ValidationError as error:
        raise ValueError(f"{field}{first_problem(error)}") from None


def apply(entries: list[JSON]) -> str:
    """Register `entries` on the server at PREFECT_API_URL; return a line that names them.

    `prefect deploy` deletes nothing: a deployment or schedule that has left the file stays on the server.
    """
    import yaml
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        for name in sorted({entry["work_pool"]["name"] for entry in entries}):
            try:
                client.read_work_pool(name)
            except ObjectNotFound:
                client.create_work_pool(WorkPoolCreate(name=name, type="process"))
    env = os.environ | {"PWD": str(CHECKOUT)}  # prefect.yaml's folder for workers without PIPELINE_CHECKOUT
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        yaml.safe_dump(yaml.safe_load((CHECKOUT / FILE).read_bytes()) | {"deployments": entries}, file)
        file.flush()
        command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all", "--prefect-file", file.name]
        answer = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True)
    if answer.returncode:
        raise RuntimeError(f"`prefect deploy --all` failed; its output:\n{(answer.stdout + answer.stderr)[-3000:]}")
    functions = {entry["entrypoint"].partition(":")[2].replace("_", "-") + "/" + entry["name"] for entry in entries}
    return f"deployed: {', '.join(sorted(functions))}"
