"""The flow of `images/watch`: start another deployment's run once files were added, and are no longer arriving.

A look costs one listing: no file is read, and neither Ray nor torch is imported.
"""

import hashlib
import json
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # works from anywhere, installed or not

from prefect import State, flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas import filters
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.runtime import deployment as own
from prefect.states import Completed

from flows.server.flow_runs import begun
from storage import access
from storage.uri import URI, parse_root
from tasks.planning.durations import parse_duration
from tasks.planning.user_images import listing

if TYPE_CHECKING:
    from prefect.client.schemas.responses import DeploymentResponse

_QUIET = ("NothingNew", "Waiting")
"""States of looks that started nothing; the next look deletes their runs, hundreds a day, from Prefect's pages."""
_UNENDED = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED, StateType.CANCELLING]


@flow(name="images", flow_run_name="watch for {deployment}", result_serializer="json")
def images(deployment: str = "images/train", settle: str = "1m") -> State[Any]:
    """Start a run of a deployment if files of its parameter `data` were added, changed or removed since its last run.

    At most one run of it is active, and none is started twice for the same files, even if it failed.

    Args:
        deployment: The deployment to run; its parameter data names the images.
        settle: How long the files must stay as they are before the run starts, such as 30s or 2m.
    """
    with begun(), get_client(sync_client=True) as client:
        settle_s = parse_duration(settle, option="settle", minimum_s=0)
        _forget_quiet_looks(client)
        target = _read(client, deployment)
        key = _key(target)
        with_key = filters.FlowRunFilterIdempotencyKey(any_=[key])
        if runs := client.read_flow_runs(flow_run_filter=filters.FlowRunFilter(idempotency_key=with_key), limit=1):
            return Completed(name="NothingNew", message=f"run {_described(runs[0])} was started for these files")
        if runs := _active(client, target):
            return Completed(name="Waiting", message=f"run {_described(runs[0])} is active; the next look tries again")
        time.sleep(settle_s)
        if _key(target) != key:
            return Completed(name="Waiting", message=f"files changed within {settle}; the next look tries again")
        run = client.create_flow_run_from_deployment(target.id, idempotency_key=key)
        return Completed(name="Started", message=f"files were added or changed: run {run.name} ({run.id})")


def _read(client: SyncPrefectClient, name: str) -> "DeploymentResponse":
    try:
        target = client.read_deployment_by_name(name)
    except (ObjectNotFound, ValueError):
        raise ValueError(f"deployment must be one of the server's, such as images/train, got {name!r}") from None
    if not target.parameters.get("data"):
        raise ValueError(f"deployment {name!r} has no parameter data; name its images in prefect.yaml")
    return target


def _key(target: "DeploymentResponse") -> str:
    """Return the idempotency key of a run for what is there now: the server creates no second run with it."""
    uri = URI(parse_root(target.parameters["data"], option="data"))
    try:
        access.check_readable(uri, option="data")
    except FileNotFoundError:
        raise ValueError(f"data: there are no files at {uri} (is its disk mounted?)") from None
    content = json.dumps([str(target.id), target.parameters, listing.state(uri)], sort_keys=True)
    return f"files {hashlib.sha256(content.encode()).hexdigest()}"


def _active(client: SyncPrefectClient, target: "DeploymentResponse") -> list[FlowRun]:
    """Return the runs of `target` that are due and have not ended."""
    due = filters.FlowRunFilterExpectedStartTime.model_validate({"before_": datetime.now(UTC)})
    unended = filters.FlowRunFilterState(type=filters.FlowRunFilterStateType(any_=_UNENDED))
    which = filters.FlowRunFilterDeploymentId(any_=[target.id])
    wanted = filters.FlowRunFilter(deployment_id=which, state=unended, expected_start_time=due)
    return client.read_flow_runs(flow_run_filter=wanted, limit=1)


def _forget_quiet_looks(client: SyncPrefectClient) -> None:
    if not own.id:
        return
    quiet = filters.FlowRunFilterState(name=filters.FlowRunFilterStateName(any_=list(_QUIET)))
    which = filters.FlowRunFilterDeploymentId.model_validate({"any_": [own.id]})
    for run in client.read_flow_runs(flow_run_filter=filters.FlowRunFilter(deployment_id=which, state=quiet)):
        client.delete_flow_run(run.id)


def _described(run: FlowRun) -> str:
    return f"{run.name} ({run.state.name if run.state else 'no state'})"
