"""The registry of champions: per data set an append-only list of decisions; the highest number counts."""

import json
import re
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from storage import files
from storage.manifest import Damaged, check_place
from storage.uri import URI, CheckpointURI, Root, check_name

ROLLED_BACK = "rolled back by hand from "
"""How the reason of a rollback begins, before the checkpoint that it took out of charge."""
_NAME = re.compile(r"[0-9]{6}\.json")


class Decision(BaseModel):
    """One decision of the gate, or of a person: which checkpoint is in charge from now on, and why."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int
    """From 1, without gaps."""
    champion: str | None
    """The checkpoint in charge after this decision, none when there never was a good enough one."""
    challenger: str
    """The checkpoint that was judged."""
    evaluation: str
    """Where the challenger's metrics lie."""
    promoted: bool
    """Whether the challenger took charge."""
    reason: str
    """One sentence for people."""
    gate: dict[str, Any]
    """The gate's settings."""
    metrics: dict[str, Any]
    """The numbers compared."""


class Superseded(RuntimeError):
    """Another decision was recorded since the last one was read: judge again."""


def history(root: Root, data: str) -> list[Decision]:
    """All decisions on `data`, oldest first; raises `Damaged` when one cannot be understood."""
    return [_read(uri) for uri in _recorded(root, data)]


def latest(root: Root, data: str) -> Decision | None:
    """The decision that counts, none when there was none yet; raises `Damaged` when it cannot be understood."""
    recorded = _recorded(root, data)
    return _read(recorded[-1]) if recorded else None


def champion(root: Root, data: str) -> CheckpointURI | None:
    """The checkpoint in charge of `data`, none when there is none yet."""
    decision = latest(root, data)
    return CheckpointURI(decision.champion) if decision and decision.champion else None


def withdrawn(decisions: Sequence[Decision]) -> set[str]:
    """Checkpoints that a person took out of charge by a rollback, and that nobody put in charge again since."""
    found: set[str] = set()
    for decision in decisions:
        if decision.reason.startswith(ROLLED_BACK):
            found.add(decision.reason.removeprefix(ROLLED_BACK))
        found.discard(str(decision.champion))
    return found


def append(root: Root, data: str, decision: Decision) -> None:
    """Record `decision`, numbered one above the latest that the caller saw: all of it or nothing, in one step.

    Raises `Superseded` when that number is taken.
    """
    uri = _folder(root, data).child(f"{decision.number:06d}.json")
    content = json.dumps(decision.model_dump(mode="json"), indent=1, allow_nan=False).encode() + b"\n"
    try:
        files.create(uri, content)
    except FileExistsError:
        if files.read(uri) != content:
            raise Superseded(f"{uri} was recorded meanwhile") from None


def _folder(root: Root, data: str) -> URI:
    return root.child(f"registry/{check_name(data, field='data set')}")


def _recorded(root: Root, data: str) -> list[URI]:
    """Where the decisions on `data` lie, oldest first."""
    folder = _folder(root, data)
    return [folder.child(name) for name in files.children(folder) if _NAME.fullmatch(name)]


def _read(uri: URI) -> Decision:
    check_place(uri.parent, uri.name)
    try:
        return Decision.model_validate_json(files.read(uri))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"])) or "JSON"
        raise Damaged(f"{uri} cannot be read ({place}: {first['msg']}); restore it from a copy") from None
