"""`make deploy`: update a Prefect server to match prefect.yaml.

Covers deployments and their schedules, the work pool, and the automations of `flows.server.automations`. Removes
deployments that are no longer in the file, but only those with the project's tag.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # works from anywhere, installed or not

from flows import PROJECT
from flows.cli.arguments import Parser
from flows.server import prefect_yaml
from flows.server.prefect_yaml import CHECKOUT, Declared
from flows.server.temporary_server import require_named_server
from storage.error_policy import Permanent
from storage.exits import guarded, refused_if_invalid
from storage.uri import redact, redact_text

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.responses import DeploymentResponse

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
        _create_pools(client, wanted)
        _run_prefect_deploy()
        _align(client, wanted)
        remark = automations.apply(client)
        names = [f"{client.read_flow(one.flow_id).name}/{one.name}" for one in deployments(client)]
    return f"the server matches prefect.yaml: {', '.join(sorted(names))}{remark}"


def _create_pools(client: "SyncPrefectClient", wanted: Declared) -> None:
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectNotFound

    for name in sorted({one["work_pool"]["name"] for one in wanted.values()}):
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


if __name__ == "__main__":
    raise SystemExit(main())
