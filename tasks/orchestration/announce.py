"""Prefect events for promotions, derived from the registry so that a crash loses none."""

import uuid
from collections.abc import Sequence

from prefect.client.orchestration import get_client
from prefect.events.schemas.events import Event, RelatedResource, Resource
from prefect.runtime import flow_run

from storage import registry
from storage.decision import Decision
from storage.failpoints import failpoint
from storage.uri import Root
from tasks.jobs.deadline import DeadlineExceeded
from tasks.orchestration.prefect_options import may_announce
from tasks.orchestration.stage import logger

PROMOTED = "pipeline.model.promoted"
"""Name of the event for a new champion."""


def with_event(decision: Decision, decisions: Sequence[Decision]) -> Decision:
    """Add an event id to `decision` if it changes the champion that `decisions` left."""
    is_new = decision.champion != (decisions[-1].champion if decisions else None)
    return decision.model_copy(update={"event": str(uuid.uuid4())}) if is_new else decision


def announce(root: Root, data: str, decisions: Sequence[Decision]) -> None:
    """Send the events of `decisions` that are not recorded as sent.

    The registry stores each event's id with its decision, and records the event as sent once the server has it. After a
    crash in between, the event is sent again with the same id, so that receivers can drop the duplicate. If sending
    fails, the next run tries again; for a decision of a deployment, only the next run of a deployment does.
    """
    told = registry.announced(root, data)
    for decision in decisions:
        if decision.event is None or decision.number in told or not may_announce(decision.author):
            continue
        failpoint("announce", f"{data} {decision.number}")
        try:
            send(data, decision)
        except DeadlineExceeded:
            raise
        except Exception as error:  # the decision is recorded; no error here may fail the run
            logger().warning("the promotion is recorded but not announced; the next run tries again: %s", error)
            return
        registry.note_announced(root, data, decision.number)


def send(data: str, decision: Decision) -> None:
    """Send the event to Prefect's server; return once the server has it."""
    run = flow_run.id
    role = {"prefect.resource.id": f"prefect.flow-run.{run}", "prefect.resource.role": "flow-run"}
    event = Event(
        id=uuid.UUID(decision.event),
        event=PROMOTED,
        resource=Resource({"prefect.resource.id": f"pipeline.champion.{data}", "prefect.resource.name": data}),
        related=[RelatedResource(role)] if run else [],
        payload={
            "registered_model": data,
            "number": decision.number,
            "checkpoint": decision.challenger,
            "reason": decision.reason,
            "metrics": decision.metrics,
        },
    )
    with get_client(sync_client=True) as client:
        client.request("POST", "/events", json=[event.model_dump(mode="json")])
