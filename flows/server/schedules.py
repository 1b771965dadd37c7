"""The next run of each schedule, as the server has planned it."""

from datetime import UTC, datetime, timedelta

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.exceptions import PrefectException

from flows import AUTO_SCHEDULED
from flows.server import deploy

_PLANNED_WITHIN = timedelta(seconds=90)
"""Time after which a server has planned runs of every schedule: it does so every minute."""


def next_run_lines(*, since: datetime) -> list[str]:
    """Say when the next run of each scheduled deployment is due, or that the server has planned none.

    Args:
        since: When the server was started. Just after that, the list is empty until every run is planned.
    """
    try:
        with get_client(sync_client=True) as client:
            times = next_runs(client)
    except (httpx.HTTPError, PrefectException):
        return []
    if None in times.values() and datetime.now(UTC) - since < _PLANNED_WITHIN:
        return []
    lines = []
    advice = "read the lines that begin with server:"
    for name, due in times.items():
        planned = f"next scheduled run of {name}: {due.astimezone():%Y-%m-%d %H:%M %Z}" if due else None
        lines.append(planned or f"WARNING: {name} has a schedule, but the server has planned no run; {advice}")
    return lines or ["no deployment has a schedule"]


def next_runs(client: SyncPrefectClient) -> dict[str, datetime | None]:
    """Look up when the next planned run of each deployment with an active schedule is due, None if there is none."""
    times: dict[str, datetime | None] = {}
    due = filters.FlowRunFilterNextScheduledStartTime.model_validate({"after_": datetime.now(UTC)})
    for deployment in deploy.deployments(client):
        if deployment.paused or not any(schedule.active for schedule in deployment.schedules):
            continue
        runs = client.read_flow_runs(
            flow_run_filter=filters.FlowRunFilter(
                deployment_id=filters.FlowRunFilterDeploymentId(any_=[deployment.id]),
                state=filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
                next_scheduled_start_time=due,
                tags=filters.FlowRunFilterTags(all_=[AUTO_SCHEDULED]),
            ),
            sort=FlowRunSort.NEXT_SCHEDULED_START_TIME_ASC,
            limit=1,
        )
        flow = client.read_flow(deployment.flow_id).name
        times[f"{flow}/{deployment.name}"] = runs[0].next_scheduled_start_time if runs else None
    return times
