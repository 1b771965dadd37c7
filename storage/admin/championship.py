"""Who is in charge of each data set, who was before, and how a person changes that."""

from collections.abc import Sequence

from storage import files, manifest, registry
from storage.admin.catalog import KINDS
from storage.manifest import Damaged, Manifest
from storage.registry import Decision
from storage.uri import URI, CheckpointURI, Root, is_name


def data_sets(root: Root) -> list[str]:
    """Sorted names of the data sets on which there are decisions; what is called otherwise there is none of ours."""
    folder = root.child("registry")
    return [name for name in files.children(folder) if is_name(name) and files.children(folder.child(name))]


def decisions(root: Root, data: str) -> list[Decision]:
    """All decisions on `data`, oldest first.

    Raises `Damaged` when one is missing, cannot be understood or names no checkpoint, and `ValueError` naming the data
    sets that there are when there is none on `data`.
    """
    known = data_sets(root)
    if data not in known:
        hint = f"there are some on {', '.join(known)}" if known else "run the pipeline first"
        raise ValueError(f"data set: {root} has no decision on {data!r}; {hint}")
    history = registry.history(root, data)
    for number, decision in enumerate(history, start=1):
        place = f"{root.child(f'registry/{data}')}/{number:06d}.json"
        if decision.number != number:
            raise Damaged(f"{place} is missing or says another number; restore it from a copy")
        try:
            URI(decision.champion or "/")
        except ValueError as error:
            raise Damaged(f"{place} cannot be read (champion: {error}); restore it from a copy") from None
    return history


def reigns(history: Sequence[Decision]) -> list[Decision]:
    """The decisions by which the present champion and those before it took charge, oldest first.

    No two in a row are of the same champion. A rollback takes away the last one: the champion that it puts back is the
    one before, and the champion before that one is whoever was before it then. Whatever else puts another checkpoint in
    charge, the gate or a person, adds one.
    """
    found: list[Decision] = []
    for decision in history:
        if decision.reason.startswith(registry.ROLLED_BACK) and found:
            found.pop()
        if decision.champion and (not found or found[-1].champion != decision.champion):
            found.append(decision)
    return found


def rollback(root: Root, data: str) -> Decision:
    """Put the champion before the present one back in charge, by one more decision; its bytes are verified first.

    A second rollback goes further back, not forth again: with A, B and C promoted in this order, the first puts B in
    charge, the second A, and a third is refused. After one to B, a promotion of D makes B the champion before D.

    Raises `ValueError` when there was no champion before, or it is not there any more, `Damaged` when its bytes are not
    what was committed, and `Superseded` when somebody else decided meanwhile.
    """
    history = decisions(root, data)
    before = reigns(history)[-2:-1]
    if not before:
        raise ValueError(f"data set: {data} has no champion before the present one; use: python -m storage promote URI")
    checkpoint = CheckpointURI(str(before[0].champion))
    try:
        manifest.verify(checkpoint)
    except FileNotFoundError:
        raise ValueError(
            f"data set: the champion of {data} before the present one, {checkpoint}, is not there any more; promote "
            "another with: python -m storage promote URI"
        ) from None
    reason = f"{registry.ROLLED_BACK}{history[-1].champion}"
    return _put_in_charge(root, data, checkpoint, latest=history[-1], evaluation=before[0].evaluation, reason=reason)


def promote(root: Root, checkpoint: CheckpointURI) -> str:
    """Put `checkpoint` in charge of its data set, whatever the gate says, and return the data set's name.

    Raises `ValueError` for what is no checkpoint, `Damaged` when its bytes are not what was committed, and `Superseded`
    when somebody else decided meanwhile.
    """
    made = manifest.load(checkpoint)
    if made.kind != "checkpoint":
        raise ValueError(f"uri must be a checkpoint, got {checkpoint} of kind {made.kind}; see: python -m storage ls")
    data = _data_set(checkpoint, made)
    manifest.verify(checkpoint)
    latest = registry.latest(root, data)
    _put_in_charge(root, data, checkpoint, latest=latest, evaluation="", reason="promoted by hand")
    return data


def _put_in_charge(
    root: Root, data: str, checkpoint: CheckpointURI, *, latest: Decision | None, evaluation: str, reason: str
) -> Decision:
    decision = Decision(
        number=latest.number + 1 if latest else 1,
        champion=checkpoint,
        challenger=checkpoint,
        evaluation=evaluation,
        promoted=True,
        reason=reason,
        gate={},
        metrics={},
    )
    registry.append(root, data, decision)
    return decision


def _data_set(checkpoint: CheckpointURI, made: Manifest) -> str:
    """The name of the data set that everything comes from."""
    for _ in KINDS:
        if made.kind == "raw" and "data" in made.parameters:
            return str(made.parameters["data"])
        parent = made.parents.get("raw") or made.parents.get("prepared")
        if not parent:
            break
        try:
            made = manifest.load(URI(parent))
        except FileNotFoundError:
            raise ValueError(f"uri: of which data set {checkpoint} is cannot be known: {parent} is missing") from None
    raise ValueError(f"uri: {checkpoint} does not say which data set it comes from; give one that a run made")
