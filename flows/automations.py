"""What the Prefect server does by itself for our runs: ends those that died unseen, and tells a webhook."""

import os
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from flows import PROJECT
from storage.uri import is_web_address, masked
from tasks.promote import PROMOTED

WEBHOOK = "PIPELINE_WEBHOOK_URL"
"""Environment variable with the address that is told of failed and crashed runs and of promotions."""
MISSED_S = 90.0
"""How long after its last heartbeat (one every 30 s) a run is given up; Prefect's own advice is three of them."""

_RUN = """{
 "event": "run-{{ flow_run.state.type.value | lower }}",
 "flow": {{ flow.name | tojson }},
 "deployment": {{ deployment.name | tojson }},
 "run": {{ flow_run.name | tojson }},
 "run_id": "{{ flow_run.id }}",
 "state": {{ flow_run.state.name | tojson }},
 "at": "{{ event.occurred }}",
 "link": {{ flow_run | ui_url | tojson }}
}"""
"""No message of the error: it may quote what a person or a library put into it."""
_PROMOTION = """{
 "event": "promoted",
 "data": {{ event.resource["prefect.resource.name"] | tojson }},
 "checkpoint": {{ event.payload.checkpoint | tojson }},
 "reason": {{ event.payload.reason | tojson }},
 "metrics": {{ event.payload.metrics | tojson }},
 "at": "{{ event.occurred }}"
}"""


def apply(client: Any) -> Iterator[str]:
    """Bring the server's automations and the webhook's block into line; a line for each thing changed."""
    url, name = webhook_url(), f"{PROJECT}-webhook"
    if url and url != _held_url(client, name):
        yield "set the webhook's address"
    block = _save_block(name, url) if url else None
    wanted = {f"{PROJECT}: {name}": parts for name, parts in automations(block).items()}
    held = {one.name: one for one in client.read_automations() if one.name.startswith(f"{PROJECT}: ")}
    for title in sorted(held.keys() - wanted.keys()):
        client.delete_automation(held[title].id)
        yield f"removed automation {title!r}"
    for title, core in wanted.items():
        # Said outright: what was never set is not sent, and an automation that somebody paused would stay so.
        core = core.model_copy(update={"name": title, "enabled": True})
        if title not in held:
            client.create_automation(core)
            yield f"created automation {title!r}"
        elif _content(held[title]) != _content(core):
            client.update_automation(held[title].id, core)
            yield f"changed automation {title!r}"
    if url is None and _delete_block(client, name):
        yield "removed the webhook's address"


def webhook_url() -> str | None:
    """The address to tell, none for nobody; raises `ValueError` for one that cannot be called."""
    url = os.environ.get(WEBHOOK)
    if url and not is_web_address(url):
        raise ValueError(f"{WEBHOOK} must be an http:// or https:// address, got {masked(url)!r}")
    return url or None


def automations(webhook: Any) -> dict[str, Any]:
    """Every automation by name; those that call `webhook` (the id of a block) only when there is one."""
    from prefect.automations import AutomationCore, CallWebhook, ChangeFlowRunState, EventTrigger, Posture
    from prefect.client.schemas.objects import StateType

    ours: dict[str, str | list[str]] = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{PROJECT}"}
    runs: dict[str, str | list[str]] = {"prefect.resource.id": "prefect.flow-run.*"}
    crash = ChangeFlowRunState(
        name=None, state=StateType.CRASHED, message=f"no heartbeat for {MISSED_S:.0f} s", force=False
    )
    found = {
        "end runs that died": AutomationCore(
            name="",
            description="A run whose heartbeats stop is marked as crashed, so that the next one can start.",
            trigger=EventTrigger(
                after={"prefect.flow-run.heartbeat"},
                expect={"prefect.flow-run.*"},  # another heartbeat, or the end of the run in whatever state
                match=runs,
                match_related=ours,
                for_each={"prefect.resource.id"},
                posture=Posture.Proactive,
                threshold=1,
                within=timedelta(seconds=MISSED_S),
            ),
            actions=[crash],
        )
    }
    if webhook is not None:
        ends = {f"prefect.flow-run.{state}" for state in ("Failed", "TimedOut", "Crashed")}
        found["tell of failed and crashed runs"] = AutomationCore(
            name="",
            trigger=EventTrigger(expect=ends, match=runs, match_related=ours, posture=Posture.Reactive, threshold=1),
            actions=[CallWebhook(block_document_id=webhook, payload=_RUN)],
        )
        found["tell of promotions"] = AutomationCore(
            name="",
            trigger=EventTrigger(expect={PROMOTED}, posture=Posture.Reactive, threshold=1),
            actions=[CallWebhook(block_document_id=webhook, payload=_PROMOTION)],
        )
    return found


def _content(automation: Any) -> Any:
    content = automation.model_dump(mode="json", include={"description", "enabled", "trigger", "actions"})
    for name in ("after", "expect"):  # sets: their order is another one in every process
        content["trigger"][name] = sorted(content["trigger"][name])
    return content


def _save_block(name: str, url: str) -> Any:
    """The id of the block that holds the address: the server keeps it encrypted and shows it masked."""
    from prefect.blocks.webhook import Webhook
    from prefect.types import SecretDict
    from pydantic import SecretStr

    webhook = Webhook(url=SecretStr(url), headers=SecretDict({"Content-Type": "application/json"}))
    return webhook.save(name, overwrite=True)


def _held_url(client: Any, name: str) -> str | None:
    from prefect.exceptions import ObjectNotFound

    try:
        return str(client.read_block_document_by_name(name, "webhook", include_secrets=True).data["url"])
    except ObjectNotFound:
        return None


def _delete_block(client: Any, name: str) -> bool:
    from prefect.exceptions import ObjectNotFound

    try:
        block = client.read_block_document_by_name(name, "webhook", include_secrets=False)
    except ObjectNotFound:
        return False
    client.delete_block_document(block.id)
    return True
