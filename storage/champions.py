"""Registered models: their champions, past and present, decisions of users on them, and their default names."""

import contextlib
import hashlib
import os
from collections.abc import Sequence

from storage import files, manifest, reference, registry
from storage.decision import Decision
from storage.kinds import RAW, CheckpointURI
from storage.manifest import Damaged, Manifest
from storage.producer import user
from storage.uri import URI, Root, is_name

_TRAIN = "train a model first: data-to-model run"
_DIGEST_DIGITS = 8
_LONGEST_NAME = 64


def registered_models(root: Root) -> list[str]:
    """Return the sorted names of the registered models; folders with an invalid name are ignored."""
    folder = root.child("registry")
    return [name for name in files.children(folder) if is_name(name) and files.children(folder.child(name))]


def require_champion(root: Root, name: str) -> CheckpointURI:
    """Return the champion of `name`, or of `usual(root)` if `name` is empty; raises `ValueError` if that is none."""
    model = name or usual(root)
    if model and (champion := registry.champion(root, model)):
        return champion
    names = with_champion(root)
    missing = f"{root} has no champion of {name!r}" if name else f"{root} has no champion"
    if not names:
        judged = registered_models(root)
        hint = "no model has passed the gate (see data-to-model history); name a checkpoint, or promote one"
        raise ValueError(f"{missing}; {hint if judged else _TRAIN}")
    problem = missing if name else "there are several champions"
    raise ValueError(f"{problem}; choose one: champion:{', champion:'.join(names)}")


def usual(root: Root) -> str:
    """Return the only registered model that has a champion, or the only one on user images, or nothing."""
    names = with_champion(root)
    names = names if len(names) == 1 else [name for name in names if _is_of_user_images(root, name)]
    return names[0] if len(names) == 1 else ""


def with_champion(root: Root) -> list[str]:
    """Return the sorted names of the registered models that have a champion; skip those with damaged decisions."""
    names = []
    for name in registered_models(root):
        with contextlib.suppress(Damaged):
            names += [name] if registry.champion(root, name) else []
    return names


def decisions(root: Root, name: str) -> list[Decision]:
    """Return `registry.history` of `name`; raises `ValueError` naming the registered models if it is empty."""
    names = registered_models(root)
    if name not in names:
        hint = f"there are decisions on {', '.join(names)}" if names else _TRAIN
        raise ValueError(f"registered model: {root} has no decision on {name!r}; {hint}")
    return registry.history(root, name)


def judged(root: Root) -> set[str]:
    """Return the fingerprints of the checkpoints that any decision is about; skip damaged registered models."""
    fingerprints: set[str] = set()
    for name in registered_models(root):
        with contextlib.suppress(Damaged):
            fingerprints |= {decision.challenger.fingerprint for decision in registry.history(root, name)}
    return fingerprints


def promotion_stack(history: Sequence[Decision]) -> list[Decision]:
    """Return the decisions that made the current champion and each of its predecessors champion, oldest first.

    A rollback removes the last decision. Every other one that changes the champion, by the gate or by a user, adds one.
    """
    stack: list[Decision] = []
    for decision in history:
        if stack and decision.withdraws:
            stack.pop()
        if decision.champion and (not stack or stack[-1].champion != decision.champion):
            stack.append(decision)
    return stack


def rollback(root: Root, name: str) -> Decision:
    """Restore the previous champion of `promotion_stack` by one more decision.

    Raises `ValueError` if there is none or it was deleted, `Damaged` if its bytes changed, and `registry.Superseded`.
    """
    history = decisions(root, name)
    *_, before, now = [None, None, *promotion_stack(history)]
    if not (before and before.champion and now and now.champion):
        raise ValueError(f"registered model: {name} has no previous champion; use: data-to-model promote URI")
    try:
        manifest.verify(before.champion)
    except FileNotFoundError:
        raise ValueError(
            f"registered model: the previous champion of {name}, {before.champion}, does not exist any more; promote "
            "another with: data-to-model promote URI"
        ) from None
    decision = Decision(
        number=history[-1].number + 1,
        champion=before.champion,
        weights=registry.weights_of(before.champion),
        challenger=before.champion,
        evaluation=before.evaluation,
        promoted=True,
        withdraws=now.champion,
        reason=f"rolled back by hand from {reference.of(now.champion, root=root)}",
    ).made_by(user())
    registry.append(root, name, decision)
    return decision


def promote(root: Root, checkpoint: CheckpointURI, *, name: str | None = None, reason: str | None = None) -> str:
    """Make `checkpoint` the champion of `name`, or of the registered model in which it competed; return that.

    Raises `ValueError` if it is no checkpoint, `Damaged` if its bytes changed, and `registry.Superseded`.
    """
    kind = manifest.load(checkpoint).kind
    if kind != "checkpoint":
        raise ValueError(f"uri must be a checkpoint, got {checkpoint} of kind {kind}; see: data-to-model ls")
    if not name:
        names = registered_models(root)
        judged_in = [each for each in names if checkpoint in {one.challenger for one in registry.history(root, each)}]
        if len(judged_in) != 1:
            competed = ", ".join(judged_in) or "no registered model"
            raise ValueError(f"uri: {checkpoint} competed in {competed}; select one with --register-as NAME")
        (name,) = judged_in
    manifest.verify(checkpoint)
    latest = registry.latest(root, name)
    decision = Decision(
        number=latest.number + 1 if latest else 1,
        champion=checkpoint,
        weights=registry.weights_of(checkpoint),
        challenger=checkpoint,
        evaluation="",
        promoted=True,
        reason=f"promoted by hand: {reason}" if reason else "promoted by hand",
    )
    registry.append(root, name, decision.made_by(user()))
    return name


def default_of_raw(uri: URI, raw: Manifest) -> str:
    """Return the default registered model of a raw dataset: its source's name, or `default_for_user_images`."""
    name, place = uri.stem, location_of(raw)
    return name if place is None else default_for_user_images(name, place)


def default_for_user_images(name: str, place: URI) -> str:
    """Return the default registered model of user images at `place`: the folder's `name` and a digest of the URI."""
    canonical = str(place) if place.is_s3 else os.path.realpath(place)  # through any link, it is the same folder
    digest = hashlib.sha256(canonical.encode()).hexdigest()[:_DIGEST_DIGITS]
    return f"{name[: _LONGEST_NAME - _DIGEST_DIGITS - 1].rstrip('-')}-{digest}"


def _is_of_user_images(root: Root, name: str) -> bool:
    """Return whether the champion of `name` was trained on user images, as far as is known."""
    champion = registry.champion(root, name)
    with contextlib.suppress(KeyError, FileNotFoundError, ValueError, Damaged):
        if champion:
            prepared = manifest.load(champion).parent("prepared", of=champion)
            return location_of(manifest.load(manifest.load(prepared).parent("raw", of=prepared))) is not None
    return False


def location_of(raw: Manifest) -> URI | None:
    """Return the location of the user's own files; none for a downloaded source."""
    sources = raw.statistics_of(RAW).sources
    return URI(sources[0].url) if "listing" in raw.parameters and sources else None


def label_table_of(raw: Manifest) -> str | None:
    """Return the table with the labels of the user's own files, as `--labels` names it; none without one."""
    return next((table.url for table in raw.statistics_of(RAW).sources[1:] if "listing" in raw.parameters), None)
