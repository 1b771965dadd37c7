"""What a result was made from, back to the checksums of the raw files."""

import dataclasses
from collections.abc import Iterator
from typing import Any

from storage.admin import catalog, damage
from storage.admin.catalog import Folder
from storage.uri import URI, masked


@dataclasses.dataclass
class Tree:
    """The lineage of one result as lines for people."""

    lines: list[str] = dataclasses.field(default_factory=list)
    """From the result down to the raw files, each below what was made from it."""
    is_sound: bool = True
    """Whether everything on the way is there with its size."""
    _shown: set[URI] = dataclasses.field(default_factory=set)

    def add(self, role: str, uri: URI, *, first: str = "", rest: str = "") -> None:
        """Append `uri` and all that it was made from; `first` stands before its own line, `rest` before the others."""
        if uri in self._shown:
            self.lines.append(f"{first}{role}  {uri}  (see above)")
            return
        self._shown.add(uri)
        folder = catalog.find(uri)
        wrong = _wrong(folder)
        self.is_sound = self.is_sound and not wrong
        self.lines.append("  ".join([f"{first}{role}", uri, *filter(None, [wrong])]))
        below = [*sorted(folder.parents.items()), *(("", source) for source in _sources(folder))]
        for number, (parent_role, parent) in enumerate(below, start=1):
            branch, trunk = ("└─ ", "   ") if number == len(below) else ("├─ ", "│  ")
            if isinstance(parent, URI):
                self.add(parent_role, parent, first=rest + branch, rest=rest + trunk)
            else:
                self.lines.append(f"{rest}{branch}{parent}")


def of(uri: URI, role: str) -> Tree:
    """The lineage of `uri`; a parent that is missing or damaged is shown as such."""
    tree = Tree()
    tree.add(role, uri)
    return tree


def _wrong(folder: Folder) -> str:
    """Why `folder` cannot be relied on, the first reason in full; empty when it can."""
    if folder.manifest is None and not folder.damage:
        return "MISSING: it is not committed"
    wrong = list(damage.of_folder(folder, deep=False))
    more = f", and {len(wrong) - 1} more files" if len(wrong) > 1 else ""
    return f"DAMAGED: {wrong[0]}{more}" if wrong else ""


def _sources(folder: Folder) -> Iterator[str]:
    """The files of a download, or that a raw dataset was made from, as it recorded them; not both, where both are."""
    if folder.manifest is None or folder.manifest.kind not in ("files", "raw"):
        return
    if "files" in folder.parents and catalog.find(folder.parents["files"], with_files=False).manifest:
        return
    sources = folder.manifest.statistics.get("sources")
    if not isinstance(sources, list) or not sources:
        yield "no record of its source files"
        return
    named = [_source(source if isinstance(source, dict) else {"name": str(source)}) for source in sources]
    width = max(len(name) for name, _ in named)
    yield from (f"{name:{width}}  {rest}" for name, rest in named)


def _source(about: dict[str, Any]) -> tuple[str, str]:
    """Name, and checksum and origin."""
    origin = masked(str(about.get("url", "an unknown place")))
    return str(about.get("name", "a file")), f"sha256 {about.get('sha256') or 'not recorded'}  from {origin}"
