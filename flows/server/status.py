"""Freshness: what keeps the model of a storage root from staying good, by Prefect's server and by the root itself."""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import DeploymentFilter, FlowRunFilter
from prefect.client.schemas.objects import FlowRun, WorkPoolStatus
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import ObjectNotFound, PrefectException
from prefect.settings import get_current_settings

from flows import PROJECT
from flows.cli import preflight
from flows.cli.commands import StatusOptions
from flows.cli.storage_commands import existing_root
from storage import champions, exits, registry, terminal
from storage.admin import catalog
from storage.kinds import REPORT
from storage.manifest import Damaged
from storage.uri import Root, redact
from tasks.resources import capacity

WELL = "all is well"
_REJECTIONS = 5
"""Rejections in a row for the same reason that are a problem."""
_LATE = timedelta(minutes=15)
"""Delay of a run from which nobody can expect that it starts soon."""


def main(options: StatusOptions) -> int:
    """Print what is wrong; return 1 if anything is, else 0."""
    with exits.refused_if_invalid():
        max_age = timedelta(seconds=preflight.seconds(options.max_age, option="--max-age"))
        sentences = problems(existing_root(options.storage), max_age=max_age)
    terminal.answer({"problems": sentences}, sentences or [WELL], as_json=options.as_json)
    return exits.FAILED if sentences else 0


def problems(root: Root, *, max_age: timedelta = timedelta(hours=48)) -> list[str]:
    """Return what is wrong, one sentence each with the next step; nothing if the model stays fresh.

    Args:
        root: Storage root of the runs.
        max_age: Longest time since a run ended well. A Prefect server, if PREFECT_API_URL names one, knows it of each
            deployment with a schedule; without one, the newest report counts.
    """
    found = [*_of_registry(root), *_of_disk(root)]
    url = get_current_settings().api.url
    if not url:
        return [*_of_reports(root, max_age), *found]
    try:
        with get_client(sync_client=True) as client:
            return [*_of_server(client, max_age), *found]
    except (httpx.HTTPError, PrefectException) as error:
        reason = str(error) or type(error).__name__
        return [f"the Prefect server at {redact(url)} does not answer ({reason}); start it: make up", *found]


def _of_server(client: SyncPrefectClient, max_age: timedelta) -> Iterator[str]:
    ours = DeploymentFilter.model_validate({"tags": {"all_": [PROJECT]}})
    scheduled = [each for each in client.read_deployments(deployment_filter=ours) if each.schedules]
    if not scheduled:
        yield "no deployment has a schedule; add one to deployments.yaml, then: data-to-model deploy"
    for deployment in scheduled:
        name = f"{client.read_flow(deployment.flow_id).name}/{deployment.name}"
        if deployment.paused or not any(schedule.active for schedule in deployment.schedules):
            yield f"the schedule of {name} is paused; resume it: prefect deployment schedule resume {name}"
        elif late := _first(client, deployment, FlowRunSort.EXPECTED_START_TIME_ASC, name={"any_": ["Late"]}):
            due = late.next_scheduled_start_time or late.expected_start_time
            if due and datetime.now(UTC) - due > _LATE:
                yield f"{name} should have started {_ago(due)}; is a worker there, and is another run not ending?"
        ended = _first(client, deployment, FlowRunSort.END_TIME_DESC, type={"any_": ["COMPLETED"]})
        since = (ended.end_time if ended else deployment.created) or datetime.now(UTC)
        if datetime.now(UTC) - since > max_age:
            last = f"its last one ended {_ago(since)}" if ended else f"it was deployed {_ago(since)}"
            yield f"no run of {name} has ended well for too long: {last}; its latest runs and logs are in the UI"
    for pool in sorted({deployment.work_pool_name for deployment in scheduled if deployment.work_pool_name}):
        try:
            status = client.read_work_pool(pool).status
        except ObjectNotFound:
            status = None
        if status != WorkPoolStatus.READY:
            reason = "it is paused" if status == WorkPoolStatus.PAUSED else "no worker is there"
            yield f"nothing runs in work pool {pool}: {reason}; run: make up, or prefect worker start --pool {pool}"


def _first(
    client: SyncPrefectClient, deployment: DeploymentResponse, sort: FlowRunSort, **state: object
) -> FlowRun | None:
    """Return the first run of a deployment, in the order of `sort`, whose state passes Prefect's filter `state`."""
    chosen = FlowRunFilter.model_validate({"deployment_id": {"any_": [deployment.id]}, "state": state})
    return next(iter(client.read_flow_runs(flow_run_filter=chosen, sort=sort, limit=1)), None)


def _of_reports(root: Root, max_age: timedelta) -> Iterator[str]:
    reports = catalog.read_folders(catalog.list_folders(root, [REPORT.name]))
    newest = max((report.created for report in reports), default=None)
    if newest is None:
        yield f"no run has succeeded in {root}; start one: data-to-model run, or name another --storage"
    elif datetime.now(UTC) - newest > max_age:
        yield f"the newest report below {root} was made {_ago(newest)}; run the pipeline"


def _of_registry(root: Root) -> Iterator[str]:
    for name in champions.registered_models(root):
        try:
            latest = registry.history(root, name)[-_REJECTIONS:]
        except Damaged as error:
            yield f"{error}; see: data-to-model verify --storage {root}"
            continue
        rejected = [decision.reason for decision in latest if decision.verdict == "rejected"]
        without_numbers = {re.sub(r"[-+\d.,]+", "0", reason) for reason in rejected}
        if len(rejected) == _REJECTIONS and len(without_numbers) == 1:
            yield f"the last {_REJECTIONS} models of {name} were rejected for the same reason: {latest[-1].reason}"


def _of_disk(root: Root) -> Iterator[str]:
    try:
        capacity.check_disk(root)
    except ValueError as error:
        yield str(error)


def _ago(moment: datetime) -> str:
    hours = (datetime.now(UTC) - moment).total_seconds() / 3600
    return f"{terminal.count(round(hours / 24), 'day')} ago" if hours >= 48 else f"{hours:.1f} h ago"
