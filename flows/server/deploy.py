"""`make deploy`: update a Prefect server to match prefect.yaml.

Covers deployments and their schedules, and the work pool. Removes deployments that are no longer in the file, but only
those with the project's tag.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows import PROJECT
from flows.server.temporary_server import require_named_server
from storage.error_policy import Permanent
from storage.exits import refused_if_invalid
from storage.uri import redact, redact_text

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

CHECKOUT = Path(__file__).resolve().parents[2]
Declared = dict[tuple[str, str], dict[str, Any]]
"""Deployments of prefect.yaml, by entrypoint and name."""


class DeployFailed(Permanent):
    """The server could not be updated; earlier changes remain."""


def main() -> int:
    """Update the server; return 0, or exit with 2 for an invalid request."""
    require_named_server()
    with refused_if_invalid():
        print(apply())
    return 0


def apply() -> str:
    """Update the server at PREFECT_API_URL to match prefect.yaml; return a line that names its deployments.

    Raises `ValueError` for an error in the file and `DeployFailed` if the server cannot be reached or updated.
    """
    import httpx
    from prefect.client.orchestration import get_client

    wanted = read()
    with get_client(sync_client=True) as client:
        try:
            client.hello().raise_for_status()
        except httpx.HTTPError as error:
            where, why = redact(str(client.api_url)), redact_text(str(error))
            raise DeployFailed(f"no Prefect server responds at {where}: {why}; start it first") from None
        _create_pools(client, wanted)
        _run_prefect_deploy()
        _align(client, wanted)
        names = [f"{client.read_flow(each.flow_id).name}/{each.name}" for each in deployments(client)]
    return f"the server matches prefect.yaml: {', '.join(sorted(names))}"


def read() -> Declared:
    """Read the deployments by entrypoint and name; raise `ValueError` for an invalid or untagged one."""
    declared = {}
    for entry in _file()["deployments"]:
        place = f"prefect.yaml: deployment {entry.get('name')!r}"
        if missing := {"name", "entrypoint", "work_pool"} - entry.keys():
            raise ValueError(f"{place} needs {', '.join(sorted(missing))}")
        if PROJECT not in entry.get("tags", []):
            raise ValueError(f"{place} needs the tag {PROJECT!r}, which marks this project's deployments")
        if not all(schedule.get("slug") for schedule in entry.get("schedules") or []):
            raise ValueError(f"{place}: every schedule needs a slug (its name)")
        declared[entry["entrypoint"], entry["name"]] = entry
    return declared


def _file() -> dict[str, Any]:
    import yaml

    try:
        content: dict[str, Any] = yaml.safe_load((CHECKOUT / "prefect.yaml").read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ValueError(f"prefect.yaml cannot be read: {' '.join(str(error).split())}") from None
    if not isinstance(content, dict) or "deployments" not in content:
        raise ValueError("prefect.yaml has no deployments; add at least one")
    return content


def _create_pools(client: "SyncPrefectClient", wanted: Declared) -> None:
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound

    for name in sorted({entry["work_pool"]["name"] for entry in wanted.values()}):
        try:
            client.read_work_pool(name)
        except ObjectNotFound:
            client.create_work_pool(WorkPoolCreate(name=name, type="process"))


def _run_prefect_deploy() -> None:
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    env = os.environ | {"PWD": str(CHECKOUT)}  # prefect.yaml's folder for workers without PIPELINE_CHECKOUT
    answer = subprocess.run(command, cwd=CHECKOUT, env=env, capture_output=True, text=True)
    if answer.returncode:
        raise DeployFailed(
            "`prefect deploy --all` failed; some deployments may have been updated; fix the cause and run "
            f"`make deploy` again; its output:\n{(answer.stdout + answer.stderr)[-3000:]}"
        )


def _align(client: "SyncPrefectClient", wanted: Declared) -> None:
    """Do what `prefect deploy` omits: delete removed deployments and schedules, reset the schedules' `active`.

    Raises `DeployFailed` for a parameter that the flow does not have, which the server would keep.
    """
    for deployment in deployments(client):
        entry = wanted.get((deployment.entrypoint or "", deployment.name))
        if entry is None:
            client.delete_deployment(deployment.id)
            client.delete_resource_owned_automations(f"prefect.deployment.{deployment.id}")  # its triggers
            continue
        known = (deployment.parameter_openapi_schema or {}).get("properties", {})
        for parameters in (deployment.parameters, *(schedule.parameters for schedule in deployment.schedules)):
            if known and (unknown := sorted(parameters.keys() - known.keys())):
                place = f"prefect.yaml: deployment {deployment.name!r} of {deployment.entrypoint}"
                raise DeployFailed(f"{place}: parameters: {unknown[0]!r} is not one of {', '.join(known)}")
        active = {schedule["slug"]: schedule.get("active", True) for schedule in entry.get("schedules") or []}
        for schedule in deployment.schedules:
            if schedule.slug not in active:
                client.delete_deployment_schedule(deployment.id, schedule.id)
            elif schedule.active != active[schedule.slug]:
                client.update_deployment_schedule(deployment.id, schedule.id, active=active[schedule.slug])


def deployments(client: "SyncPrefectClient") -> "list[DeploymentResponse]":
    """List this project's deployments on the server."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[PROJECT]))
    responses: list[DeploymentResponse] = []
    while len(page := client.read_deployments(deployment_filter=ours, limit=100, offset=len(responses))) == 100:
        responses += page
    return responses + page
