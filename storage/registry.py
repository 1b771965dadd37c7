"""The registry of champions: for each registered model an append-only chain of decisions; the highest number counts.

`registry/<registered model>/NNNNNN.json` holds a decision, its own digest and that of the entry before, so that a
changed or missing entry is detected and named; only the removal of the latest ones is not. Checkpoints and evaluations
are stored as references.
"""

import contextlib
import dataclasses
import functools
import hashlib
import itertools
import json
import re
from collections.abc import Callable, Collection, Sequence
from typing import Final

from pydantic import TypeAdapter, ValidationError

from storage import files, manifest, reference
from storage.decision import Decision
from storage.kinds import CheckpointURI
from storage.manifest import JSON, Damaged
from storage.uri import URI, Root, check_name

_NAME = re.compile(r"[0-9]{6}\.json")
_JSON_OBJECT = TypeAdapter(JSON)
_REFERENCES: Final = ("champion", "challenger", "evaluation", "withdraws")
"""Fields of a decision that name a result or are empty."""


class Superseded(RuntimeError):
    """Another decision was recorded since the latest was read: decide again."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Entry:
    """A loaded entry, whose own digest was checked."""

    uri: URI
    decision: Decision
    digest: str
    previous: str | None
    """Digest of the entry before; none for the first entry."""


def history(root: Root, name: str) -> list[Decision]:
    """Return the decisions on `name`, oldest first; raises `Damaged` naming one that is missing or was changed."""
    return _load_chain(root, _recorded(root, name))


def latest(root: Root, name: str) -> Decision | None:
    """Return the latest decision on `name`, which is the one that counts; none if there is none yet.

    Raises `Damaged` naming its file if it or the entry before was changed, or if any entry is missing.
    """
    return next(reversed(_load_chain(root, _recorded(root, name)[-2:])), None)


def champion(root: Root, name: str) -> CheckpointURI | None:
    decision = latest(root, name)
    return decision.champion if decision else None


def withdrawn(decisions: Sequence[Decision]) -> set[str]:
    """Return the models that a rollback removed as champion and that were not promoted again since.

    A model is the SHA-256 of its weights, wherever it lies; if that is not known, its URI.
    """
    models_withdrawn: set[str] = set()
    models: dict[CheckpointURI, str] = {}
    for decision in decisions:
        if decision.withdraws:
            models_withdrawn.add(models.get(decision.withdraws, decision.withdraws))
        if decision.champion:
            models[decision.champion] = decision.weights or models.get(decision.champion, decision.champion)
            models_withdrawn.discard(models[decision.champion])
    return models_withdrawn


def weights_of(checkpoint: CheckpointURI) -> str | None:
    """Return the SHA-256 of a checkpoint's weights; none if it cannot be read, as when it was deleted."""
    with contextlib.suppress(OSError, Damaged, ValueError):
        weights = manifest.load(checkpoint).file("weights")
        return weights.sha256 if weights else None
    return None


def append(root: Root, name: str, decision: Decision) -> None:
    """Record `decision` in one step, as a whole or not at all; its number is one above the latest the caller read.

    Raises `Superseded` if another decision has that number, `Damaged` if the entry before is missing or was changed.
    """
    uri = _place(root, name, decision.number)
    resolve = functools.partial(reference.resolve, root=root)
    before = _load(_place(root, name, decision.number - 1), resolve) if decision.number > 1 else None
    document = with_references(decision, root) | {"previous": before.digest if before else None}
    document["digest"] = _digest(document)
    content = json.dumps(document, indent=1, allow_nan=False).encode() + b"\n"
    try:
        files.put(uri, content, mode="create")
    except FileExistsError:
        raise Superseded(f"{uri} was recorded in the meantime") from None


def with_references(decision: Decision, root: Root, *, exclude: Collection[str] = ()) -> JSON:
    """Dump `decision` without `exclude` as JSON values, with references to URIs, wherever `root` is."""
    document = decision.model_dump(mode="json", exclude=set(exclude))
    named = {field: getattr(decision, field) for field in _REFERENCES if document.get(field)}
    return document | {field: reference.of(uri, root=root) for field, uri in named.items()}


def _digest(document: JSON) -> str:
    content = {name: value for name, value in document.items() if name != "digest"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def _folder(root: Root, name: str) -> URI:
    return root.child(f"registry/{check_name(name, field='registered model')}")


def _place(root: Root, name: str, number: int) -> URI:
    return _folder(root, name).child(f"{number:06d}.json")


def _recorded(root: Root, name: str) -> list[URI]:
    recorded = {child for child in files.children(_folder(root, name)) if _NAME.fullmatch(child)}
    latest = int(max(recorded, default="0").partition(".")[0])
    uris = [_place(root, name, number) for number in range(1, latest + 1)]
    # A listing may miss a file that is created meanwhile.
    if missing := next((uri for uri in uris if uri.name not in recorded and not files.exists(uri)), None):
        raise Damaged(f"{missing} is missing; restore it from a copy")
    return uris


def _load_chain(root: Root, uris: Sequence[URI]) -> list[Decision]:
    """Load successive decisions; raises `Damaged` naming the first whose digest the next one did not record."""
    resolve = functools.cache(functools.partial(reference.resolve, root=root))
    entries = [_load(uri, resolve) for uri in uris]
    for before, entry in itertools.pairwise(entries):
        if entry.previous != before.digest:
            raise Damaged(f"{before.uri} does not match the digest in {entry.uri.name}; restore it from a copy")
    return [entry.decision for entry in entries]


def _load(uri: URI, resolve: Callable[..., URI]) -> _Entry:
    try:
        content = files.read(uri)
        document = _JSON_OBJECT.validate_json(content)
        digest, previous, recorded = _digest(document), document.pop("previous", None), document.pop("digest", None)
        decision = Decision.model_validate(document, context=resolve)
    except FileNotFoundError:
        raise Damaged(f"{uri} is missing; restore it from a copy") from None
    except ValidationError as error:
        raise manifest.unread(uri, content, error, advice="restore it from a copy") from None
    if recorded != digest:
        raise Damaged(f"{uri} is not what was recorded (SHA-256); restore it from a copy")
    if uri.name != f"{decision.number:06d}.json":
        raise Damaged(f"{uri} contains another number, {decision.number}; restore it from a copy")
    return _Entry(uri=uri, decision=decision, digest=digest, previous=previous)
