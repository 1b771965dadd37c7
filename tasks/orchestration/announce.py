"""Prefect events for promotions, whose ids follow from the registry, so that a repeated run sends none twice."""

import datetime
import uuid
from collections.abc import Sequence

from prefect.client.orchestration import get_client
from prefect.events.filters import EventFilter, EventIDFilter
from prefect.events.schemas.events import Event, RelatedResource, Resource
from prefect.runtime import flow_run

from storage.decision import Decision
from storage.failpoints import failpoint
from tasks.jobs.deadline import DeadlineExceeded
from tasks.orchestration.stage import logger

PROMOTED = "pipeline.model.promoted"
"""Name of the event for a new champion."""
_REPEATED_FOR = datetime.timedelta(days=1)
"""Age of a promotion up to which a run that finds it sends its event, if the server does not have it."""


def announce(registered_model: str, decision: Decision, decisions: Sequence[Decision]) -> None:
    """Send the event of a new champion, unless Prefect's server has it; a failure is logged and does not fail the run.

    A run that repeats one that was killed, or could not reach the server, sends the same event with the same id.
    `decisions` are all those of the registered model, oldest first.
    """
    before = next((entry.champion for entry in reversed(decisions) if entry.number < decision.number), None)
    is_recent = decision.decided and datetime.datetime.now(datetime.UTC) - decision.decided < _REPEATED_FOR
    if decision.champion == before or not is_recent:
        return
    failpoint("announce", f"{registered_model} {decision.number}")
    try:
        send(registered_model, decision)
    except DeadlineExceeded:
        raise
    except Exception as error:  # the decision is recorded; no error here may fail the run
        logger().warning("the promotion is recorded but not announced; run again to announce it: %s", error)


def send(registered_model: str, decision: Decision) -> None:
    """Send the event to Prefect's server, unless the server has it."""
    run = flow_run.id
    role = {"prefect.resource.id": f"prefect.flow-run.{run}", "prefect.resource.role": "flow-run"}
    resource = f"pipeline.champion.{registered_model}"
    event = Event(
        id=event_id(registered_model, decision),
        event=PROMOTED,
        resource=Resource({"prefect.resource.id": resource, "prefect.resource.name": registered_model}),
        related=[RelatedResource(role)] if run else [],
        payload={
            "registered_model": registered_model,
            "number": decision.number,
            "checkpoint": decision.challenger,
            "reason": decision.reason,
            "metrics": decision.metrics,
        },
    )
    with get_client(sync_client=True) as client:
        if not client.read_events(filter=EventFilter(id=EventIDFilter(id=[event.id])), limit=1).events:
            client.request("POST", "/events", json=[event.model_dump(mode="json")])


def event_id(registered_model: str, decision: Decision) -> uuid.UUID:
    """Return the id of the event of `decision`, the same whenever it is sent; another root has other ones."""
    return uuid.uuid5(uuid.NAMESPACE_URL, f"{registered_model}/{decision.number}/{decision.decided}")
