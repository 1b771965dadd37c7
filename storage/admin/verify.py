"""Verification of committed files, one sentence for each problem; and lineage, back to the checksums of raw files."""

from collections.abc import Iterator

from storage import manifest, reference
from storage.admin import catalog
from storage.admin.catalog import Folder
from storage.manifest import Damaged
from storage.statistics import FilesStatistics, RawStatistics
from storage.uri import URI, redact


def of_folder(folder: Folder, *, deep: bool) -> Iterator[str]:
    """Yield a sentence for every listed file that is missing or of another size; `deep`: for other bytes or parents."""
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
                f"{folder.uri} was made from other bytes of {parent} than exist now; runs do not use it, and name the "
                "command that deletes it"
            )
            return


def lineage(uri: URI, role: str) -> tuple[list[str], bool]:
    """Return the lineage of `uri` as lines, and whether all of it exists with its size and no parent changed."""
    lines: list[str] = []
    problems: list[str] = []
    shown = set[URI]()

    def add(role: str, uri: URI, *, indent: str) -> None:
        if uri in shown:
            lines.append(f"{indent}{role}  {uri}  (see above)")
            return
        shown.add(uri)
        folder = catalog.find(uri)
        problems.append(_wrong(folder))
        lines.append("  ".join(filter(None, [f"{indent}{role}", uri, problems[-1]])))
        for parent_role, parent in sorted(folder.parents.items()):
            add(parent_role, parent, indent=f"{indent}  ")
        lines.extend(f"{indent}  {source}" for source in _sources(folder))

    add(role, uri, indent="")
    return lines, not any(problems)


def _wrong(folder: Folder) -> str:
    if folder.manifest is None and not folder.damage:
        return "MISSING: not committed"
    wrong = list(of_folder(folder, deep=False))
    more = f", and {len(wrong) - 1} more files" if len(wrong) > 1 else ""
    if wrong:
        return f"DAMAGED: {wrong[0]}{more}"
    return next((f"PARENT CHANGED: {problem}" for problem in of_parents(folder)), "")


def _sources(folder: Folder) -> Iterator[str]:
    """Yield the recorded source files of a download, or of a raw dataset whose download is not in storage."""
    recorded = folder.manifest and folder.manifest.statistics
    if not isinstance(recorded, FilesStatistics | RawStatistics):
        return
    if "files" in folder.parents and catalog.find(folder.parents["files"], with_files=False).manifest:
        return
    width = max((len(source.name) for source in recorded.sources), default=0)
    for source in recorded.sources:
        yield f"{source.name:{width}}  sha256 {source.sha256}  from {redact(source.url)}"
