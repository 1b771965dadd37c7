"""`make deploy`: update a Prefect server to match prefect.yaml, and print each change.

Covers deployments and their schedules, the work pool, and the automations of `flows.server.automations`. Removes
deployments that are no longer in the file, but only those with the project's tag.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # works from anywhere, installed or not

from flows import PROJECT
from flows.cli.arguments import Parser
from flows.cli.exits import guarded, refuse, refused_if_invalid
from flows.server import prefect_yaml
from flows.server.prefect_yaml import CHECKOUT, Declared
from storage.error_policy import Permanent
from storage.uri import is_web_address, redact, redact_text

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse
    from prefect.client.schemas.schedules import SCHEDULE_TYPES

_EPILOG = """\
environment:
  PREFECT_API_URL       the server to change, such as http://127.0.0.1:4200/api
  PIPELINE_WEBHOOK_URL  URL notified of failed and crashed runs and of promotions (default: none)"""


class DeployFailed(Permanent):
    """The server could not be updated; earlier changes remain."""


def main() -> int:
    """Update the server; return 0 (it matches the file) or 1 (failed); exit with 2 for an invalid request."""
    what = "Update a Prefect server to match prefect.yaml: deployments, schedules, automations."
    Parser(prog="python flows/server/deploy.py", description=what, epilog=_EPILOG).parse_args()
    return guarded(_main)


def _main() -> int:
    url = os.environ.get("PREFECT_API_URL")
    if url and not is_web_address(url):
        refuse(f"PREFECT_API_URL must be an address such as http://127.0.0.1:4200/api, got {redact(url)!r}")
    from prefect.settings import get_current_settings

    if not get_current_settings().api.url:
        refuse("PREFECT_API_URL is not set; set it to the server to deploy to, or start one with `make up`")
    with refused_if_invalid():
        for line in apply():
            print(line)
    return 0


def apply() -> list[str]:
    """Update the server at PREFECT_API_URL to match prefect.yaml; return a line for each change.

    Raises `ValueError` for an error in the file and `DeployFailed` if the server cannot be reached or updated.
    """
    import httpx
    from prefect.client.orchestration import get_client

    from flows.server import automations

    wanted = prefect_yaml.read()
    prefect_yaml.check_parameters(wanted)
    automations.webhook_url()
    with get_client(sync_client=True) as client:
        try:
            client.hello().raise_for_status()
        except httpx.HTTPError as error:
            where, why = redact(str(client.api_url)), redact_text(str(error))
            raise DeployFailed(f"no Prefect server responds at {where}: {why}; start it first") from None
        before = _held(client)
        changes = list(_create_pools(client, wanted))
        _run_prefect_deploy()
        _align(client, wanted)
        changes += _differences(before, _held(client))
        changes += automations.apply(client)
    return changes or ["nothing to change: the server matches prefect.yaml"]


def _create_pools(client: "SyncPrefectClient", wanted: Declared) -> Iterator[str]:
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound

    for name in sorted({one["work_pool"]["name"] for one in wanted.values()}):
        try:
            client.read_work_pool(name)
        except ObjectNotFound:
            client.create_work_pool(WorkPoolCreate(name=name, type="process"))
            yield f"created work pool {name}"


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
    """Do what `prefect deploy` omits: delete removed deployments and schedules, reset the schedules' `active`."""
    for deployment in deployments(client):
        one = wanted.get((deployment.entrypoint or "", deployment.name))
        if one is None:
            client.delete_deployment(deployment.id)
            continue
        active = {schedule["slug"]: schedule.get("active", True) for schedule in one.get("schedules", [])}
        for schedule in deployment.schedules:
            if schedule.slug not in active:
                client.delete_deployment_schedule(deployment.id, schedule.id)
            elif schedule.active != active[schedule.slug]:
                client.update_deployment_schedule(deployment.id, schedule.id, active=active[schedule.slug])


def deployments(client: "SyncPrefectClient") -> "list[DeploymentResponse]":
    """List this project's deployments on the server."""
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags

    ours = DeploymentFilter(tags=DeploymentFilterTags(all_=[PROJECT]))
    found: list[DeploymentResponse] = []
    while len(page := client.read_deployments(deployment_filter=ours, limit=100, offset=len(found))) == 100:
        found += page
    return found + page


def _held(client: "SyncPrefectClient") -> dict[str, dict[str, Any]]:
    """Read from the server what prefect.yaml defines, by deployment and field."""
    held = {}
    for deployment in deployments(client):
        flow = client.read_flow(deployment.flow_id).name
        held[f"{flow}/{deployment.name}"] = {
            "description": deployment.description,
            "entrypoint": deployment.entrypoint,
            "parameters": deployment.parameters,
            "work pool": deployment.work_pool_name,
            "job variables": deployment.job_variables,
            "concurrency limit": deployment.global_concurrency_limit and deployment.global_concurrency_limit.limit,
            "collision strategy": deployment.concurrency_options
            and deployment.concurrency_options.collision_strategy.value,
            "form": deployment.parameter_openapi_schema,
            "folder": deployment.pull_steps,
        } | {
            f"schedule {one.slug}": f"{_said(one.schedule)}{'' if one.active else ' (paused)'}"
            for one in deployment.schedules
        }
    return held


def _said(schedule: "SCHEDULE_TYPES") -> str:
    """Describe `schedule` without an interval's start, which Prefect sets anew each time."""
    if interval := getattr(schedule, "interval", None):
        return f"every {interval}"
    return f"{getattr(schedule, 'cron', None) or schedule} {getattr(schedule, 'timezone', '') or ''}".strip()


def _differences(before: dict[str, dict[str, Any]], after: dict[str, dict[str, Any]]) -> Iterator[str]:
    for name in sorted(before.keys() | after.keys()):
        if name not in after:
            yield f"removed deployment {name}"
        elif name not in before:
            schedules = [f"{key} ({value})" for key, value in after[name].items() if key.startswith("schedule ")]
            yield f"created deployment {name}" + (f" with {', '.join(schedules)}" if schedules else "")
        else:
            yield from (f"{name}: {change}" for change in _changes(before[name], after[name]))


def _changes(before: dict[str, Any], after: dict[str, Any]) -> Iterator[str]:
    for field in sorted(before.keys() | after.keys()):
        old, new = before.get(field), after.get(field)
        if old == new:
            continue
        if field in ("form", "folder", "job variables"):
            yield f"changed {field}"
        elif field.startswith("schedule "):
            yield f"removed {field} ({old})" if new is None else f"set {field} to {new}"
        else:
            yield f"changed {field} from {old!r} to {new!r}"


if __name__ == "__main__":
    raise SystemExit(main())
