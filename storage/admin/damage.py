"""What is wrong with committed files, in one sentence for each."""

from collections.abc import Callable, Iterator

from storage import files, manifest, streams
from storage.admin import championship
from storage.admin.catalog import Folder
from storage.manifest import Damaged, File
from storage.uri import URI, Root


def of_folder(folder: Folder, *, deep: bool, on_file: Callable[[File], None] = lambda file: None) -> Iterator[str]:
    """Every listed file that is missing or has another size, and with `deep` every one whose bytes differ.

    `on_file` is told of each file once it was checked.
    """
    if folder.damage:
        yield folder.damage
        return
    sizes = {entry.path: entry.size for entry in folder.found}
    for file in folder.manifest.files if folder.manifest else ():
        place = folder.uri.child(file.path)
        wrong = None if place.lies_in(folder.uri) else "it is a link that leads elsewhere"
        wrong = wrong or _wrong_size(file, sizes.get(file.path)) or (_wrong_bytes(place, file) if deep else None)
        if wrong:
            yield f"{place} is damaged: {wrong}; restore it, or remove {folder.uri} and run again to make it anew"
        on_file(file)


def of_registry(root: Root) -> Iterator[str]:
    """Every data set whose decisions cannot be read or are not all there, or whose champion is not committed."""
    for data in championship.data_sets(root):
        try:
            reigns = championship.reigns(championship.decisions(root, data))
        except Damaged as error:
            yield str(error)
            continue
        champion = reigns[-1].champion if reigns else None
        if champion and not files.exists(URI(champion).child(manifest.NAME)):
            yield f"{champion}, the champion of {data}, is not committed; restore it, or promote another"


def _wrong_size(file: File, size: int | None) -> str | None:
    if size is None:
        return "it is missing"
    return None if size == file.size else f"it has {size} bytes instead of {file.size}"


def _wrong_bytes(place: URI, file: File) -> str | None:
    try:
        found = streams.sha256(place)
    except OSError as error:
        return f"it cannot be read ({error.strerror or error})"
    if found != file.sha256:
        return "its content is not what was committed (SHA-256)"
    return None
