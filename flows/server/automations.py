"""Automations of the Prefect server for this project's runs: end dead runs, restart them, notify a webhook."""

import os
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import httpx
from prefect.automations import AutomationCore, CallWebhook, ChangeFlowRunState, EventTrigger, Posture
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import BlockDocument, StateType
from prefect.events.schemas.automations import Automation
from prefect.exceptions import ObjectNotFound
from prefect.types import SecretDict
from pydantic import SecretStr

from flows import PROJECT
from flows.server import restarts
from storage.uri import is_web_address, redact
from tasks.orchestration.announce import PROMOTED

WEBHOOK = "PIPELINE_WEBHOOK_URL"
"""Environment variable with the URL notified of failed and crashed runs and of promotions."""
MISSED_S = 90.0
"""Seconds without a heartbeat after which a run counts as crashed: three heartbeats of 30 s, as Prefect advises."""

_RUN = """{
 "event": "run-{{ 'given-up' if flow_run.state.name == 'GivenUp' else flow_run.state.type.value | lower }}",
 "flow": {{ flow.name | tojson }},
 "deployment": {{ deployment.name | tojson }},
 "run": {{ flow_run.name | tojson }},
 "run_id": "{{ flow_run.id }}",
 "state": {{ flow_run.state.name | tojson }},
 "at": "{{ event.occurred }}",
 "link": {{ flow_run | ui_url | tojson }}
}"""
"""Omits the error message, which may quote private text from a user or a library."""
_PROMOTION = """{
 "event": "promoted",
 "id": "{{ event.id }}",
 "number": {{ event.payload.number | default(none) | tojson }},
 "data": {{ event.resource["prefect.resource.name"] | tojson }},
 "checkpoint": {{ event.payload.checkpoint | tojson }},
 "reason": {{ event.payload.reason | tojson }},
 "metrics": {{ event.payload.metrics | tojson }},
 "at": "{{ event.occurred }}"
}"""


def apply(client: SyncPrefectClient) -> Iterator[str]:
    """Update the server's automations and webhook block; yield a line for each change."""
    url, name = webhook_url(), f"{PROJECT}-webhook"
    old = _block(client, name)
    if url and not (old and old.data["url"] == url):
        yield f"set the webhook's address{try_webhook(url)}"
    new = _save_block(name, url) if url else None
    wanted = {f"{PROJECT}: {name}": parts for name, parts in automations(new).items()}
    held = {one.name: one for one in _all(client) if one.name.startswith(f"{PROJECT}: ")}
    for title in sorted(held.keys() - wanted.keys()):
        client.delete_automation(held[title].id)
        yield f"removed automation {title!r}"
    for title, core in wanted.items():
        # Set `enabled` explicitly: the client sends only fields that were set, and a paused automation would stay so.
        core = core.model_copy(update={"name": title, "enabled": True})
        if title not in held:
            client.create_automation(core)
            yield f"created automation {title!r}"
        elif _content(held[title]) != _content(core):
            client.update_automation(held[title].id, core)
            yield f"changed automation {title!r}"
    if url is None and old is not None:
        client.delete_block_document(old.id)
        yield "removed the webhook's address"


def webhook_url() -> str | None:
    """Return the webhook's URL, None if there is none; raise `ValueError` if it is not an HTTP address."""
    url = os.environ.get(WEBHOOK)
    if url and not is_web_address(url):
        raise ValueError(f"{WEBHOOK} must be an http:// or https:// address, got {redact(url)!r}")
    return url or None


def try_webhook(url: str) -> str:
    """Post a test message; return a remark if nothing responds.

    Raises `ValueError` if the message is refused or redirected: Prefect would drop all messages silently.
    """
    try:
        answer = httpx.post(url, json={"event": "test"}, timeout=10)
    except httpx.TransportError as error:
        return f", which does not respond to this machine ({type(error).__name__}): no test message was sent"
    if not answer.is_success:
        raise ValueError(
            f"{WEBHOOK} answers a test message with {answer.status_code} {answer.reason_phrase}; it must accept a POST "
            "of JSON at this very address"
        )
    return ""


def automations(webhook: UUID | None) -> dict[str, AutomationCore]:
    """Build the automations by name; those that notify `webhook` (the id of a block) only if it is given."""
    ours: restarts.Labels = {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{PROJECT}"}
    runs: restarts.Labels = {"prefect.resource.id": "prefect.flow-run.*"}
    message = f"no heartbeat for {MISSED_S:.0f} s"
    crash = ChangeFlowRunState(name=None, state=StateType.CRASHED, message=message, force=False)
    # A server on SQLite may lose the first heartbeat: it comes with all the events of a run's beginning.
    died = restarts.when_silent({"heartbeat", "Running"}, MISSED_S, runs, ours, then=crash)
    why = "Mark a run as crashed when its heartbeats stop, so that the next run can start."
    found = {
        "end runs that died": died.model_copy(update={"description": why}),
        **restarts.automations(runs, ours),
    }
    if webhook is not None:
        ends = {f"prefect.flow-run.{state}" for state in ("Failed", "TimedOut", "Crashed", restarts.GIVEN_UP)}
        ended = EventTrigger(expect=ends, match=runs, match_related=ours, posture=Posture.Reactive, threshold=1)
        promoted = EventTrigger(expect={PROMOTED}, posture=Posture.Reactive, threshold=1)
        for name, trigger, payload in (
            ("notify about failed and crashed runs", ended, _RUN),
            ("notify about promotions", promoted, _PROMOTION),
        ):
            call = CallWebhook(block_document_id=webhook, payload=payload)
            found[name] = AutomationCore(name="", trigger=trigger, actions=[call])
    return found


def _all(client: SyncPrefectClient) -> list[Automation]:
    found: list[Automation] = []
    while page := client.read_automations(offset=len(found)):
        found += page
    return found


def _content(automation: AutomationCore) -> dict[str, Any]:
    content = automation.model_dump(mode="json", include={"description", "enabled", "trigger", "actions"})
    for name in ("after", "expect"):  # sets: their order differs between processes
        content["trigger"][name] = sorted(content["trigger"][name])
    return content


def _save_block(name: str, url: str) -> UUID:
    """Save the URL in a block, which the server encrypts and shows masked; return the block's id."""
    webhook = Webhook(url=SecretStr(url), headers=SecretDict({"Content-Type": "application/json"}))
    block = webhook.save(name, overwrite=True)
    assert isinstance(block, UUID)  # a coroutine only in async code
    return block


def _block(client: SyncPrefectClient, name: str) -> BlockDocument | None:
    try:
        return client.read_block_document_by_name(name, "webhook", include_secrets=True)
    except ObjectNotFound:
        return None
