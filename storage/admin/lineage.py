"""Lineage of a result: all its ancestors, back to the checksums of the raw files."""

import dataclasses
from collections.abc import Iterator

from storage.admin import catalog, verify
from storage.admin.catalog import Folder
from storage.uri import URI, redact


@dataclasses.dataclass
class Tree:
    """Lineage of one result as lines of text."""

    lines: list[str] = dataclasses.field(default_factory=list)
    is_sound: bool = True
    """True if everything in the lineage exists with its size and no parent changed."""
    _shown: set[URI] = dataclasses.field(default_factory=set)

    def add(self, role: str, uri: URI, *, indent: str = "") -> None:
        """Append `uri`, and below it, further to the right, its ancestors."""
        if uri in self._shown:
            self.lines.append(f"{indent}{role}  {uri}  (see above)")
            return
        self._shown.add(uri)
        folder = catalog.find(uri)
        wrong = _wrong(folder)
        self.is_sound = self.is_sound and not wrong
        self.lines.append("  ".join(filter(None, [f"{indent}{role}", uri, wrong])))
        for parent_role, parent in sorted(folder.parents.items()):
            self.add(parent_role, parent, indent=f"{indent}  ")
        self.lines += [f"{indent}  {source}" for source in _sources(folder)]


def of(uri: URI, role: str) -> Tree:
    """Build the lineage of `uri`; missing or damaged parents are marked."""
    tree = Tree()
    tree.add(role, uri)
    return tree


def _wrong(folder: Folder) -> str:
    if folder.manifest is None and not folder.damage:
        return "MISSING: not committed"
    wrong = list(verify.of_folder(folder, deep=False))
    more = f", and {len(wrong) - 1} more files" if len(wrong) > 1 else ""
    if wrong:
        return f"DAMAGED: {wrong[0]}{more}"
    return next((f"PARENT CHANGED: {problem}" for problem in verify.of_parents(folder)), "")


def _sources(folder: Folder) -> Iterator[str]:
    """Yield the recorded source files of a download, or of a raw dataset whose download is not in storage."""
    if folder.manifest is None or folder.manifest.kind not in ("files", "raw"):
        return
    if "files" in folder.parents and catalog.find(folder.parents["files"], with_files=False).manifest:
        return
    sources = folder.manifest.statistics.get("sources", ())
    width = max((len(source["name"]) for source in sources), default=0)
    for source in sources:
        yield f"{source['name']:{width}}  sha256 {source['sha256']}  from {redact(source['url'])}"
