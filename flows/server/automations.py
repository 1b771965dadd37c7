"""Automations of the Prefect server that post failed and crashed runs and promotions to a webhook."""

import contextlib
import os
from uuid import UUID

import httpx
from prefect.automations import AutomationCore, CallWebhook, EventTrigger, Posture
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient
from prefect.events.schemas.automations import Automation
from prefect.exceptions import ObjectNotFound
from prefect.types import SecretDict
from pydantic import SecretStr

from flows import PROJECT
from flows.server.watch import GIVEN_UP
from storage.uri import is_web_address, redact
from tasks.orchestration.announce import PROMOTED

WEBHOOK = "PIPELINE_WEBHOOK_URL"
"""Environment variable with the URL notified of failed and crashed runs and of promotions."""
_BLOCK = f"{PROJECT}-webhook"
"""Name of the block that holds the URL."""

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
 "registered_model": {{ event.resource["prefect.resource.name"] | tojson }},
 "checkpoint": {{ event.payload.checkpoint | tojson }},
 "reason": {{ event.payload.reason | tojson }},
 "metrics": {{ event.payload.metrics | tojson }},
 "at": "{{ event.occurred }}"
}"""


def apply(client: SyncPrefectClient) -> str:
    """Update the server's automations and webhook block; return a remark if a new webhook does not respond."""
    url, saved = webhook_url(), None
    with contextlib.suppress(ObjectNotFound):
        saved = client.read_block_document_by_name(_BLOCK, "webhook", include_secrets=True)
    remark = try_webhook(url) if url and not (saved and saved.data["url"] == url) else ""
    wanted = _automations(_save_block(url)) if url else {}
    held = {automation.name: automation for automation in _all(client) if automation.name.startswith(f"{PROJECT}: ")}
    for title in held.keys() - wanted.keys():
        client.delete_automation(held[title].id)
    for title, automation in wanted.items():
        if title in held:
            client.update_automation(held[title].id, automation)
        else:
            client.create_automation(automation)
    if saved and not url:
        client.delete_block_document(saved.id)
    return remark


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


def _automations(webhook: UUID) -> dict[str, AutomationCore]:
    """Build the automations that post to `webhook` (the id of a block), by title."""
    ended = EventTrigger(
        expect={f"prefect.flow-run.{state}" for state in ("Failed", "TimedOut", "Crashed", GIVEN_UP)},
        match={"prefect.resource.id": "prefect.flow-run.*"},
        match_related={"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{PROJECT}"},
        posture=Posture.Reactive,
        threshold=1,
    )
    promoted = EventTrigger(expect={PROMOTED}, posture=Posture.Reactive, threshold=1)
    triggers = {"failed and crashed runs": (ended, _RUN), "promotions": (promoted, _PROMOTION)}
    automations = {}
    for name, (trigger, payload) in triggers.items():
        title, call = f"{PROJECT}: notify about {name}", CallWebhook(block_document_id=webhook, payload=payload)
        # The client sends only fields that were set: without `enabled` a paused automation would stay paused.
        automations[title] = AutomationCore(name=title, trigger=trigger, actions=[call], enabled=True)
    return automations


def _all(client: SyncPrefectClient) -> list[Automation]:
    automations: list[Automation] = []
    while page := client.read_automations(offset=len(automations)):
        automations += page
    return automations


def _save_block(url: str) -> UUID:
    """Save the URL in a block, which the server encrypts and shows masked; return the block's id."""
    webhook = Webhook(url=SecretStr(url), headers=SecretDict({"Content-Type": "application/json"}))
    block = webhook.save(_BLOCK, overwrite=True)
    assert isinstance(block, UUID)  # a coroutine only in async code
    return block
