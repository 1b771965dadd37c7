"""Needed results of a storage root: champions, inputs of active runs, kept results, and the ancestors of all these."""

from collections.abc import Collection, Iterable

from storage import champions, registry
from storage.admin import catalog
from storage.admin.catalog import Folder
from storage.decision import Decision
from storage.kinds import KINDS
from storage.manifest import Damaged
from storage.uri import URI, Root


class NeededResults:
    """Names of the results that are needed at any moment.

    Names rather than URIs, because a root may be reached by several paths and a result written through one path must
    not look unneeded through another. Names end with a fingerprint, so they are unique.
    """

    def __init__(self, root: Root) -> None:
        self._root = root
        self._committed: dict[str, Folder] = {}
        self._kept: set[URI] = set()
        self._histories: dict[str, list[Decision]] = {}

    def know(self, folder: Folder) -> None:
        """Remember the parents of `folder`; raises `Damaged` if its manifest cannot be read."""
        if folder.damage:
            raise Damaged(folder.damage)
        if folder.manifest:
            self._committed[folder.uri.name] = folder

    def keep(self, uris: Iterable[URI]) -> None:
        """Count `uris` and their ancestors as needed from now on."""
        self._kept.update(uris)

    def is_committed(self, name: str) -> bool:
        """Return whether a committed result has that name, as far as known."""
        return name in self._committed

    def names(self) -> set[str]:
        """Return the names of all needed results, existing or not; reads the registry again.

        Needed are the champion of every registered model with all results made with it, the previous champion,
        everything passed to `keep`, and the ancestors of all these. Raises `Damaged` if a champion or one of its
        ancestors cannot be determined.
        """
        current, needed = set[str](), list(self._kept)
        for model in champions.registered_models(self._root):
            decisions = self._history(model)
            promoted = [each.champion for each in champions.promotion_stack(decisions)[-2:] if each.champion]
            needed += promoted
            for champion in promoted[-1:]:
                current.add(champion.name)
                self._find(champion)
                if not self.is_committed(champion.name):
                    raise Damaged(f"the champion {champion} is not committed; restore it, or promote another")
        return self._with_ancestors([*needed, *self._made_with(current)])

    def _history(self, model: str) -> list[Decision]:
        decisions = self._histories.get(model)
        if not decisions or decisions[-1] != registry.latest(self._root, model):
            decisions = self._histories[model] = champions.decisions(self._root, model)
        return decisions

    def _made_with(self, champions: Collection[str]) -> list[URI]:
        """Return the predictions of `champions`, their evaluations, reports and exports."""
        names, results = set(champions), list[URI]()
        for kind in (kind.name for kind in KINDS.values() if kind.stays_with_champion):
            for folder in [folder for folder in self._committed.values() if folder.kind == kind]:
                if not names.isdisjoint(parent.name for parent in folder.parents.values()):
                    names.add(folder.uri.name)
                    results.append(folder.uri)
        return results

    def _with_ancestors(self, uris: Iterable[URI]) -> set[str]:
        names, pending = set[str](), list(uris)
        while pending:
            uri = pending.pop()
            if uri.name not in names:
                names.add(uri.name)
                self._find(uri)
                if folder := self._committed.get(uri.name):
                    pending += folder.parents.values()
        return names

    def _find(self, uri: URI) -> None:
        """Read the result at `uri` unless it is known: it may be younger, or lie below another root."""
        if not self.is_committed(uri.name):
            self.know(catalog.find(uri, with_files=False))
