"""Verification of committed files; yields one sentence for each problem."""

from collections.abc import Iterator

from storage import champions, manifest
from storage.admin.catalog import Folder
from storage.manifest import Damaged
from storage.uri import Root


def of_folder(folder: Folder, *, deep: bool) -> Iterator[str]:
    """Yield a sentence for every listed file that is missing or has another size.

    With `deep`, also for every file whose bytes differ, and for a parent whose bytes changed since `folder` was made.
    """
    if folder.damage:
        yield folder.damage
    if folder.manifest:
        yield from manifest.damages(folder.uri, folder.manifest, folder.entries, deep=deep)
    if deep:
        yield from of_parents(folder)


def of_parents(folder: Folder) -> Iterator[str]:
    """Yield a sentence if a parent's bytes changed since `folder` was made from it."""
    if folder.manifest and (changed := manifest.changed_parent(folder.uri, folder.manifest)):
        yield (
            f"{folder.uri} was made from other bytes of {changed} than exist now; the next run makes a new result at "
            "another URI; delete this one if you do not need it"
        )


def of_registry(root: Root) -> Iterator[str]:
    """Yield a sentence for every registered model with damaged decisions or an uncommitted champion."""
    for name in champions.registered_models(root):
        try:
            stack = champions.promotion_stack(champions.decisions(root, name))
        except Damaged as error:
            yield str(error)
            continue
        champion = stack[-1].champion if stack else None
        if champion and not manifest.is_committed(champion):
            yield f"{champion}, the champion of {name}, is not committed; restore it, or promote another"
