"""What the page of all runs was made from, in a file beside it, so that the next page reads only what is new."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import BaseModel, ValidationError

from storage import files, manifest, registry
from storage.decision import Decision
from storage.kinds import REPORT
from storage.uri import URI, Root

NAME: Final = "index.json"
"""File name, directly below the storage root; without the file, the next page reads everything."""
Stamp = tuple[int, float, str | None]
"""Size, time and ETag of a manifest, as a listing has them: those of a report that was not made again."""


class _Run(BaseModel, frozen=True, extra="forbid"):
    stamp: Stamp
    row: dict[str, Any]


class _Model(BaseModel, frozen=True, extra="forbid"):
    changes: list[Decision]
    """Decisions that changed the champion."""
    last: Decision


class Memory(BaseModel, extra="forbid"):
    """Rows of runs by the names of their reports, and decisions on registered models."""

    version: Literal[1] = 1
    """Add one when the rows of `storage.admin.runs` change."""
    root: str
    """Storage root, which is part of the URIs in it."""
    runs: dict[str, _Run] = {}
    models: dict[str, _Model] = {}

    def known(self, stamps: Mapping[str, Stamp]) -> dict[str, dict[str, Any]]:
        """Return the rows by name of the reports that still have the stamps that they had."""
        uris = ("uri", "page", *REPORT.parents)
        return {
            name: run.row | {field: run.row[field] and URI(run.row[field]) for field in uris}
            for name, run in self.runs.items()
            if stamps.get(name) == run.stamp
        }

    def learn(self, stamps: Mapping[str, Stamp], rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep `rows`, without their settings, which the page does not show."""
        named = {row["uri"].name: {**row, "settings": {}} for row in rows}
        self.runs = {name: _Run(stamp=stamps[name], row=row) for name, row in named.items() if name in stamps}

    def champion_changes(self, root: Root, name: str) -> list[Decision]:
        """Return the decisions that changed the champion of `name`, oldest first; raise `Damaged` as `history` does."""
        known = self.models.get(name)
        history = registry.history(root, name, start=known.last.number) if known else []
        if not known or history[:1] != [known.last]:  # not read before, or the registry is another one
            known, history = None, registry.history(root, name)
        pairs = itertools.pairwise(history if known else [None, *history])
        changes = [*known.changes] if known else []
        changes += [now for before, now in pairs if now and now.champion != (before and before.champion)]
        if history:
            self.models[name] = _Model(changes=changes, last=history[-1])
        return changes


def load(root: Root) -> Memory:
    """Read what is kept; nothing if there is no such file, or if it is of another root or version."""
    try:
        memory = Memory.model_validate_json(files.read(root.child(NAME)))
    except (FileNotFoundError, ValidationError):
        return Memory(root=root)
    return memory if memory.root == root else Memory(root=root)


def stamps_of(root: Root) -> dict[str, Stamp]:
    """List the committed reports below `root` by name."""
    entries = files.walk(root.child(REPORT.folder))
    end = f"/{manifest.NAME}"
    return {
        entry.path.removesuffix(end): (entry.size, entry.modified, entry.etag)
        for entry in entries
        if entry.path.endswith(end) and entry.path.count("/") == 1
    }
