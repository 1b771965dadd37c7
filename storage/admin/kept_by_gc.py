"""Needed results of a storage root: champions, inputs of active runs, kept results, and the ancestors of all these."""

from collections.abc import Iterable, Iterator
from typing import Final

from storage import registry
from storage.admin import catalog
from storage.admin import champions as championship
from storage.admin.catalog import Folder
from storage.decision import Decision
from storage.kinds import KINDS
from storage.manifest import Damaged
from storage.uri import URI, Root

_DERIVED: Final = [kind.name for kind in KINDS.values() if kind.stays_with_champion]


class NeededResults:
    """Names of the results that are needed at any moment.

    Names rather than URIs, because a root may be reached by several paths and a result written through one path must
    not look unneeded through another. Names end with a fingerprint, so they are unique.
    """

    def __init__(self, root: Root) -> None:
        self._root = root
        self._known: dict[str, dict[URI, Folder]] = {}
        self._kept: set[URI] = set()
        self._histories: dict[str, list[Decision]] = {}

    def know(self, folder: Folder) -> None:
        """Remember the parents of `folder`; raises `Damaged` if its manifest cannot be read."""
        if folder.damage:
            raise Damaged(folder.damage)
        self._known.setdefault(folder.uri.name, {})[folder.uri] = folder

    def keep(self, uris: Iterable[URI]) -> None:
        """Count `uris` and their ancestors as needed from now on."""
        self._kept.update(uris)

    def names(self) -> set[str]:
        """Return the names of all needed results, existing or not; reads the registry again.

        Needed are the champion of every championship with all results made with it, the previous champion, the best one
        so far, everything passed to `keep`, and the ancestors of all these. Raises `Damaged` if a champion or one of
        its ancestors cannot be determined.
        """
        present, before = self._champions()
        return self._with_lineage([*present, *before, *self._made_with(present), *self._kept])

    def _champions(self) -> tuple[list[URI], list[URI]]:
        present: list[URI] = []
        before: list[URI] = []
        for data in championship.data_sets(self._root):
            stack = championship.promotion_stack(self._history(data))
            champions = [decision.champion for decision in stack[-2:] if decision.champion]
            best = registry.best(self._history(data))
            before += [*champions[:-1], *([best] if best else [])]
            present += champions[-1:]
        for champion in present:
            if all(folder.manifest is None for folder in self._called(champion)):
                raise Damaged(f"the champion {champion} is not committed; restore it, or promote another")
        return present, before

    def _history(self, data: str) -> list[Decision]:
        known = self._histories.get(data)
        if known is None or known[-1:] != [registry.latest(self._root, data)]:
            known = self._histories[data] = championship.decisions(self._root, data)
        return known

    def _made_with(self, champions: Iterable[URI]) -> Iterator[URI]:
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
        """Return the folders below the root with the name of `uri`; if none is committed, also `uri` itself."""
        known = self._known.setdefault(uri.name, {})
        if not any(folder.manifest for folder in known.values()):
            for place in [*known, uri]:
                self.know(catalog.find(place, with_files=False))
        return list(known.values())
