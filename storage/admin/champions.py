"""The champions of each data set, past and present, commands by which users change them, default championships."""

import contextlib
import difflib
import hashlib
import os
from collections.abc import Sequence
from typing import Literal

from storage import files, in_use, manifest, reference, registry
from storage.decision import Decision
from storage.kinds import KINDS
from storage.manifest import Damaged, Manifest
from storage.producer import user
from storage.uri import URI, CheckpointURI, EvaluationURI, Root, is_name

_DIGEST_DIGITS = 8
_LONGEST_NAME = 64


def data_sets(root: Root) -> list[str]:
    """Return the sorted names of the data sets with decisions; folders with an invalid name are ignored."""
    folder = root.child("registry")
    return [name for name in files.children(folder) if is_name(name) and files.children(folder.child(name))]


def require_champion(root: Root, data: str) -> CheckpointURI:
    """Return the champion of `data`; raises a `ValueError` that lists all championships with one if it has none."""
    if champion := registry.champion(root, data):
        return champion
    named = with_champion(root)
    if not named:
        raise ValueError(f"{root} has no champion of {data!r} or of any other championship; run the pipeline first")
    alike = [name for name in named if name.startswith(f"{data}-")] or difflib.get_close_matches(data, named)
    hint = f"; did you mean champion:{alike[0]}?" if alike else ""
    raise ValueError(f"{root} has no champion of {data!r}; there are champions of {', '.join(named)}{hint}")


def with_champion(root: Root) -> list[str]:
    """Return the sorted names of the championships that have a champion; skip those with damaged decisions."""
    found = []
    for name in data_sets(root):
        with contextlib.suppress(Damaged):
            found += [name] if registry.champion(root, name) else []
    return found


def only_championship(root: Root) -> str:
    """Return the only championship with a champion; raise `ValueError` listing them if there are several or none."""
    named = with_champion(root)
    if len(named) > 1:
        raise ValueError(f"there are several champions; choose one: champion:{', champion:'.join(named)}")
    if not named:
        raise ValueError(f"{root} has no champion; run the pipeline first")
    return named[0]


def decisions(root: Root, data: str) -> list[Decision]:
    """Return `registry.history` of `data`; raises `ValueError` naming the known data sets if it is empty."""
    known = data_sets(root)
    if data not in known:
        hint = f"there are decisions on {', '.join(known)}" if known else "run the pipeline first"
        raise ValueError(f"championship: {root} has no decision on {data!r}; {hint}")
    return registry.history(root, data)


def judged(root: Root) -> set[str]:
    """Return the fingerprints of the checkpoints that any decision is about; skip damaged championships."""
    found: set[str] = set()
    for name in data_sets(root):
        with contextlib.suppress(Damaged):
            found |= {one.challenger.fingerprint for one in registry.history(root, name)}
    return found


def promotion_stack(history: Sequence[Decision]) -> list[Decision]:
    """Return the decisions that made the current champion and each of its predecessors champion, oldest first.

    No two successive decisions have the same champion. A rollback removes the last decision, and so does the entry that
    revokes the promotion of a deleted checkpoint: the predecessor is champion again, with its own predecessors. Every
    other decision that changes the champion, by the gate or by a user, adds one.
    """
    found: list[Decision] = []
    for decision in history:
        if found and (decision.withdraws or decision.undoes):
            found.pop()
        if decision.champion and (not found or found[-1].champion != decision.champion):
            found.append(decision)
    return found


def last_champion_change(history: Sequence[Decision]) -> Decision | None:
    """Return the decision, possibly a rollback, since which the current champion holds; none without a champion."""
    found: Decision | None = None
    for decision in history:
        if found is None or decision.champion != found.champion:
            found = decision
    return found if found and found.champion else None


def rollback(root: Root, data: str) -> Decision:
    """Restore the previous champion by one more decision, after verifying its bytes.

    A second rollback goes one champion further back; it does not undo the first. If A, B and C were promoted in this
    order, the first rollback restores B, the second A, and a third is refused. If D is promoted after the rollback to
    B, the champion before D is B. Raises `ValueError` if there is no previous champion or it was deleted, `Damaged` if
    its bytes changed, and `Superseded` if another decision was recorded in the meantime.
    """
    history = decisions(root, data)
    *_, before, now = [None, None, *promotion_stack(history)]
    if not (before and before.champion and now and now.champion):
        raise ValueError(f"championship: {data} has no previous champion; use: python -m storage promote URI")
    try:
        manifest.verify(before.champion)
    except FileNotFoundError:
        raise ValueError(
            f"championship: the previous champion of {data}, {before.champion}, does not exist any more; promote "
            "another with: python -m storage promote URI"
        ) from None
    return _record_champion(
        root,
        data,
        before.champion,
        number=history[-1].number + 1,
        reason=f"rolled back by hand from {reference.of(now.champion, root=root)}",
        evaluation=before.evaluation,
        withdraws=now.champion,
    )


def promote(root: Root, checkpoint: CheckpointURI, *, name: str | None = None, reason: str | None = None) -> str:
    """Make `checkpoint` the champion, regardless of the gate, record the user's `reason`, return the championship.

    That is `name`, or else the championship in which it competed, or else that of the data it was trained on. Raises
    `ValueError` if the URI is not a checkpoint, `Damaged` if its bytes changed, and `Superseded` if another
    decision was recorded in the meantime.
    """
    made = manifest.load(checkpoint)
    if made.kind != "checkpoint":
        raise ValueError(f"uri must be a checkpoint, got {checkpoint} of kind {made.kind}; see: python -m storage ls")
    data = name or _championship(root, checkpoint, made)
    manifest.verify(checkpoint)
    latest = registry.latest(root, data)
    recorded = f"promoted by hand: {reason}" if reason else "promoted by hand"
    _record_champion(root, data, checkpoint, number=latest.number + 1 if latest else 1, reason=recorded)
    return data


def _record_champion(
    root: Root,
    data: str,
    checkpoint: CheckpointURI,
    *,
    number: int,
    reason: str,
    evaluation: EvaluationURI | Literal[""] = "",
    withdraws: CheckpointURI | None = None,
) -> Decision:
    decision = Decision(
        number=number,
        champion=checkpoint,
        weights=registry.weights_of(checkpoint),
        challenger=checkpoint,
        evaluation=evaluation,
        promoted=True,
        withdraws=withdraws,
        reason=reason,
        gate={},
        metrics={},
    ).made_by(user())
    with in_use.using(root, [checkpoint], owner="python -m storage"):
        registry.append(root, data, decision)
        registry.confirm(root, data, decision)
    return decision


def _championship(root: Root, checkpoint: CheckpointURI, made: Manifest) -> str:
    judged = [
        name for name in data_sets(root) if checkpoint in (one.challenger for one in registry.history(root, name))
    ]
    if len(judged) > 1:
        raise ValueError(f"uri: {checkpoint} competed in {', '.join(judged)}; select one with --championship")
    return judged[0] if judged else _of_data(root, checkpoint, made)


def _of_data(root: Root, checkpoint: CheckpointURI, made: Manifest) -> str:
    """Return the default championship of the raw dataset from which `checkpoint` descends."""
    uri: URI = checkpoint
    for _ in KINDS:
        if made.kind == "raw" and "data" in made.parameters:
            return default_of_raw(made)
        role = next((role for role in ("raw", "prepared") if role in made.parents), None)
        if not role:
            break
        uri = made.parent(role, of=uri)
        try:
            made = manifest.load(uri)
        except FileNotFoundError:
            raise ValueError(f"uri: {checkpoint}: its data set cannot be determined, {uri} is missing") from None
    raise ValueError(f"uri: {checkpoint} does not record its data set; use a checkpoint made by a run")


def default_of_raw(raw: Manifest) -> str:
    """Return the default championship of a raw dataset: the data set's name, or `default_for_user_images`.

    Raises `ValueError` if the manifest does not name the data set.
    """
    if "data" not in raw.parameters:
        raise ValueError("does not name the data set it belongs to")
    name, place = str(raw.parameters["data"]), _place(raw)
    return name if place is None else default_for_user_images(name, place)


def default_for_user_images(name: str, place: URI) -> str:
    """Return the default championship of user data at `place`: the folder's `name` and a digest of the whole URI."""
    digest = hashlib.sha256(_canonical(place).encode()).hexdigest()[:_DIGEST_DIGITS]
    return f"{name[: _LONGEST_NAME - _DIGEST_DIGITS - 1].rstrip('-')}-{digest}"


def trained_on_user_images(root: Root, names: Sequence[str]) -> list[str]:
    """Return those of `names` whose champion was trained on a user's own data, as far as is known."""
    return [name for name in names if _place_of_champion(root, name)]


def _place_of_champion(root: Root, name: str) -> str | None:
    champion = registry.champion(root, name)
    with contextlib.suppress(KeyError, FileNotFoundError, ValueError, Damaged):
        if champion:
            prepared = manifest.load(champion).parent("prepared", of=champion)
            place = _place(manifest.load(manifest.load(prepared).parent("raw", of=prepared)))
            return _canonical(place) if place else None
    return None


def _place(raw: Manifest) -> URI | None:
    """Return the location of the user's own files; none for a downloaded data set."""
    sources = raw.statistics.get("sources", [])
    return URI(sources[0]["url"]) if "image_size" in raw.parameters and sources else None


def _canonical(place: URI) -> str:
    """Resolve symbolic links, so that the same folder always gives the same text."""
    return str(place) if place.is_s3 else os.path.realpath(place)
