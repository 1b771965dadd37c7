"""Verification of committed files; yields one sentence for each problem."""

from collections.abc import Iterator

from storage import manifest, reference
from storage.admin.catalog import Folder
from storage.manifest import Damaged


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


def of_lost_parents(folder: Folder) -> Iterator[str]:
    """Yield a sentence for every parent below another root, whose gc knows nothing of `folder`, that is gone."""
    root = reference.root_of(folder.uri)
    for parent in folder.parents.values():
        if reference.of(parent, root=root) == parent and not manifest.is_committed(parent):
            yield f"{parent}, of which {folder.uri} was made, is gone, perhaps by gc of its root; restore it"


def of_parents(folder: Folder) -> Iterator[str]:
    """Yield a sentence if a parent's bytes changed since `folder` was made from it."""
    for role, parent in folder.parents.items():
        try:
            now = manifest.load(parent)
        except (FileNotFoundError, Damaged, ValueError):
            continue
        recorded = folder.manifest and folder.manifest.parents[role]
        if recorded and now.digest != recorded.digest and now.content != recorded.content:
            yield (
                f"{folder.uri} was made from other bytes of {parent} than exist now; the next run makes a new result "
                "at another URI; delete this one if you do not need it"
            )
            return
