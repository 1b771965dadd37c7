"""`data-to-model deploy`: check each deployment like a run, then call `prefect deploy --all`."""

import contextlib
import difflib
import os
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from pydantic import ValidationError

from flows import PROJECT
from flows.cli import preflight
from flows.cli.options import FlowOptions, PredictOptions, RunOptions, parameter_names
from flows.server.temporary_server import check_api, require_named_server
from storage.admin import catalog
from storage.exits import refused_if_invalid
from storage.process import LOOPBACK
from storage.uri import parse_root
from tasks.planning.data_option import default_recipe

CHECKOUT = Path(__file__).resolve().parents[2]
FILE, OWN_FILE = "prefect.yaml", "deployments.yaml"
"""The project's deployments, and the user's own in a file that git ignores."""
_NEEDED, _SCHEDULE = ["name", "entrypoint", "work_pool"], ["cron", "timezone", "interval", "anchor_date", "rrule"]
_FIELDS = [*_NEEDED, "description", "tags", "parameters", "schedules", "triggers", "concurrency_limit", "paused"]
_FIELDS += ["pull", "version", "enforce_parameter_schema"]
_TYPES = {"name": str, "entrypoint": str, "work_pool": dict, "tags": list, "parameters": dict, "schedules": list}


def main() -> int:
    """Check the deployments and the server, then register them; return 0, or exit with 2 if one is invalid."""
    require_named_server()
    with contextlib.chdir(CHECKOUT), refused_if_invalid():
        entries = read()
        check_api()
    print(apply(entries))
    return 0


def read() -> list[dict[str, Any]]:
    """Return the deployments of both files; raise `ValueError` for one that is invalid, before a server is asked.

    The `definitions` of prefect.yaml are their defaults.
    """
    import yaml

    entries: list[dict[str, Any]] = []
    definitions: dict[str, Any] = {}
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


def _check(entry: dict[str, Any]) -> None:
    from prefect.client.schemas.schedules import construct_schedule
    from prefect.settings import get_current_settings

    _require_known(entry, _FIELDS, field="")
    for name, kind in _TYPES.items():
        if entry.get(name) is not None and not isinstance(entry[name], kind):
            raise ValueError(f"{name} must be a {kind.__name__}, got {entry[name]!r}; see prefect.yaml for the form")
    if missing := set(_NEEDED) - entry.keys():
        raise ValueError(f"it needs {', '.join(sorted(missing))}")
    if PROJECT not in entry.get("tags", []):
        raise ValueError(f"it needs the tag {PROJECT!r}, by which crashed runs are restarted")
    script, _, function = entry["entrypoint"].partition(":")
    usual = entry.get("parameters") or {}
    for schedule in ({}, *(entry.get("schedules") or ())):
        if schedule:
            _require_known(schedule, [*_SCHEDULE, "slug", "parameters", "active", "day_or"], field="schedules: ")
            try:
                construct_schedule(**{name: schedule.get(name) for name in _SCHEDULE})
            except ValidationError as error:
                raise ValueError(f"schedules: {error.errors()[0]['msg'].removeprefix('Value error, ')}") from None
        parameters = usual | (schedule.get("parameters") or {})
        if script == "flows/pipeline.py":
            recipe = default_recipe(parameters.get("data"), flow=function.replace("_", "-"))
            preflight.check_request(_options(RunOptions, {"recipe": recipe} | parameters))
        elif script == "flows/predict.py":
            _options(PredictOptions, {"data": ""} | parameters)
        name = str(parameters.get("data") or "/")
        data = parse_root(name, option="parameters: data")
        is_here = urlsplit(get_current_settings().api.url or "").hostname in LOOPBACK  # and so is the worker
        if is_here and not (data.is_s3 or os.path.exists(data) or catalog.NAME.fullmatch(name)):
            raise ValueError(f"parameters: data: nothing exists at {data}; create it, or correct the path")


def _options(kind: type[FlowOptions], parameters: dict[str, Any]) -> Any:
    """Return the options that are the same request; raise `ValueError` for a parameter that does not exist."""
    _require_known(parameters, parameter_names(kind), field="parameters: ")
    return kind(**parameters)


def _require_known(names: Iterable[str], known: Collection[str], *, field: str) -> None:
    if unknown := set(names) - set(known):
        meant = difflib.get_close_matches(min(unknown), known, n=1)
        hint = f"did you mean {meant[0]!r}?" if meant else f"it is not one of {', '.join(known)}"
        raise ValueError(f"{field}there is no {min(unknown)!r}; {hint}")


def apply(entries: list[dict[str, Any]]) -> str:
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
