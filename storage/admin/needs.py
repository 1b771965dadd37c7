"""What must stay below a storage root: champions, what is at work, what is kept, and all that these were made from."""

import json
from collections.abc import Iterable, Iterator
from typing import Any, Final

from storage import files, registry
from storage.admin import catalog, championship
from storage.admin.catalog import Folder
from storage.manifest import Damaged
from storage.registry import Decision
from storage.uri import URI, Root

_DERIVED: Final = ("predictions", "evaluation", "report")
"""Kinds of what is made with a champion and stays as long as it does."""
_LONGEST_SPEC = 2**20
"""Bytes above which a JSON file in scratch is not what a job is told."""


class Needs:
    """Which results are needed at any moment, as names.

    Names, because they end with a fingerprint and a root may be reached by several paths: what was written through one
    must not seem unneeded through another.
    """

    def __init__(self, root: Root) -> None:
        self._root = root
        self._known: dict[str, dict[URI, Folder]] = {}
        self._kept: set[URI] = set()
        self._histories: dict[str, list[Decision]] = {}

    def know(self, folder: Folder) -> None:
        """Learn what `folder` was made from; raises `Damaged` when its manifest cannot be understood."""
        if folder.damage:
            raise Damaged(folder.damage)
        self._known.setdefault(folder.uri.name, {})[folder.uri] = folder

    def keep(self, uris: Iterable[URI]) -> None:
        """Count these and all that they were made from as needed from now on."""
        self._kept.update(uris)

    def names(self) -> set[str]:
        """All that is needed now, whether it is there or not; the registry is read anew.

        The champion of every data set with all that was made with it, the champion before it, and what is kept; and all
        that these were made from. Raises `Damaged` when a champion, or what it was made from, cannot be known.
        """
        present, before = self._champions()
        return self._with_lineage([*present, *before, *self._made_with(present), *self._kept])

    def _champions(self) -> tuple[list[URI], list[URI]]:
        """The champion of each data set, and those before them."""
        present, before = [], []
        for data in championship.data_sets(self._root):
            reigns = championship.reigns(self._history(data))
            champions = [URI(str(decision.champion)) for decision in reigns[-2:]]
            before += champions[:-1]
            present += champions[-1:]
        for champion in present:
            if all(folder.manifest is None for folder in self._called(champion)):
                raise Damaged(f"the champion {champion} is not committed; restore it, or promote another")
        return present, before

    def _history(self, data: str) -> list[Decision]:
        """All decisions on `data`, read again only when there is a new one."""
        known = self._histories.get(data)
        if known is None or known[-1:] != [registry.latest(self._root, data)]:
            known = self._histories[data] = championship.decisions(self._root, data)
        return known

    def _made_with(self, champions: Iterable[URI]) -> Iterator[URI]:
        """Predictions of these champions, and what was made from such predictions."""
        names = {champion.name for champion in champions}
        known = [folder for folders in self._known.values() for folder in folders.values()]
        found = [folder for folder in known if folder.kind in _DERIVED]
        for folder in sorted(found, key=lambda folder: _DERIVED.index(folder.kind)):
            if not names.isdisjoint(parent.name for parent in folder.parents.values()):
                names.add(folder.uri.name)
                yield folder.uri

    def _with_lineage(self, uris: Iterable[URI]) -> set[str]:
        names: set[str] = set()
        pending = list(uris)
        while pending:
            uri = pending.pop()
            if uri.name not in names:
                names.add(uri.name)
                pending += [parent for folder in self._called(uri) for parent in folder.parents.values()]
        return names

    def _called(self, uri: URI) -> list[Folder]:
        """What is called like `uri` below the root; while that is not committed, also `uri` itself, wherever it is."""
        known = self._known.setdefault(uri.name, {})
        if not any(folder.manifest for folder in known.values()):
            for place in [*known, uri]:
                self.know(catalog.find(place, with_files=False))
        return list(known.values())


def inputs(scratch: Folder) -> set[URI]:
    """What the attempts of `scratch` read: all that the specs of their jobs name beside their own result."""
    specs = [entry for entry in scratch.found if "/" not in entry.path and entry.path.endswith(".json")]
    named: set[URI] = set()
    for entry in specs:
        if entry.size <= _LONGEST_SPEC:
            named.update(_named(scratch.uri.child(entry.path)))
    return {uri for uri in named if uri.name != scratch.uri.name}


def _named(spec: URI) -> Iterator[URI]:
    try:
        content = json.loads(files.read(spec))
    except (FileNotFoundError, ValueError, RecursionError):
        return
    for text in _strings(content):
        try:
            yield URI(text)
        except ValueError:
            continue


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)
