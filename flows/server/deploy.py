"""`data-to-model deploy`: check each deployment of prefect.yaml like a run, then call `prefect deploy --all`."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from flows import PROJECT
from flows.cli import preflight
from flows.cli.options import FlowOptions, PredictOptions, RunOptions, parameter_names
from flows.server.temporary_server import check_api, require_named_server
from storage.exits import refused_if_invalid
from tasks.planning.data_option import default_recipe

CHECKOUT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Check prefect.yaml and the server, then register its deployments; return 0, or exit with 2 if one is invalid."""
    require_named_server()
    with refused_if_invalid():
        entries = read()
        check_api()
    print(apply(entries))
    return 0


def read() -> list[dict[str, Any]]:
    """Return the deployments of prefect.yaml; raise `ValueError` for one that is invalid, before a server is asked."""
    import yaml

    try:
        entries = yaml.safe_load((CHECKOUT / "prefect.yaml").read_text())["deployments"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise ValueError(f"prefect.yaml: no deployments can be read: {' '.join(str(error).split())}") from None
    for entry in entries:
        try:
            _check(entry)
        except ValueError as error:
            where = f"prefect.yaml: deployment {entry.get('name')!r} of {entry.get('entrypoint')}"
            raise ValueError(f"{where}: {error}") from None
    return list(entries)


def _check(entry: dict[str, Any]) -> None:
    if missing := {"name", "entrypoint", "work_pool"} - entry.keys():
        raise ValueError(f"it needs {', '.join(sorted(missing))}")
    if PROJECT not in entry.get("tags", []):
        raise ValueError(f"it needs the tag {PROJECT!r}, by which crashed runs are restarted")
    script, _, function = entry["entrypoint"].partition(":")
    usual = entry.get("parameters") or {}
    for schedule in ({}, *(entry.get("schedules") or ())):
        parameters = usual | (schedule.get("parameters") or {})
        if script == "flows/pipeline.py":
            recipe = default_recipe(parameters.get("data"), flow=function.replace("_", "-"))
            preflight.check_request(_options(RunOptions, {"recipe": recipe} | parameters))
        elif script == "flows/predict.py":
            _options(PredictOptions, {"data": ""} | parameters)


def _options(kind: type[FlowOptions], parameters: dict[str, Any]) -> Any:
    """Return the options that are the same request; raise `ValueError` for a parameter that does not exist."""
    known = parameter_names(kind)
    if unknown := parameters.keys() - set(known):
        raise ValueError(f"parameters: {min(unknown)!r} is not one of {', '.join(known)}")
    return kind(**parameters)


def apply(entries: list[dict[str, Any]]) -> str:
    """Register `entries` on the server at PREFECT_API_URL; return a line that names them.

    `prefect deploy` deletes nothing: a deployment or schedule that has left the file stays on the server.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound

    with get_client(sync_client=True) as client:
        for name in sorted({entry["work_pool"]["name"] for entry in entries}):
            try:
                client.read_work_pool(name)
            except ObjectNotFound:
                client.create_work_pool(WorkPoolCreate(name=name, type="process"))
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    env = os.environ | {"PWD": str(CHECKOUT)}  # prefect.yaml's folder for workers without PIPELINE_CHECKOUT
    answer = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True)
    if answer.returncode:
        raise RuntimeError(f"`prefect deploy --all` failed; its output:\n{(answer.stdout + answer.stderr)[-3000:]}")
    functions = {entry["entrypoint"].partition(":")[2].replace("_", "-") + "/" + entry["name"] for entry in entries}
    return f"deployed: {', '.join(sorted(functions))}"
