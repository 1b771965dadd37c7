"""Forgetting an image: the certificate of it, and the deletion of all that was made of the image, whatever its age."""

from collections.abc import Collection, Iterable

from pydantic import AwareDatetime, BaseModel, ValidationError

from storage import files, manifest, uses
from storage.admin import catalog
from storage.admin.catalog import SCRATCH, Folder
from storage.kinds import KINDS
from storage.manifest import Damaged
from storage.terminal import first
from storage.uri import URI, Root

FOLDER = "forgotten"
"""Folder below a root for the certificates; nothing else there has the digests of a forgotten image."""
_SHOWN = 3


class Certificate(BaseModel, frozen=True, extra="forbid"):
    """What is deleted and what replaced it; written before the first deletion, and again after the last."""

    sha256: str
    """SHA-256 of the file."""
    files: tuple[str, ...] = ()
    """The same of each file with its pixels."""
    pixels: tuple[str, ...] = ()
    """Digest of its pixels in each size in which a dataset had it."""
    replaced: dict[str, str] = {}
    """The model that took the place of each champion that was made of the image."""
    deleted: dict[str, str] = {}
    """Digest of the manifest of each deleted result."""
    finished: AwareDatetime | None = None


def place(root: Root, sha256: str) -> URI:
    return root.child(f"{FOLDER}/{sha256}.json")


def read(root: Root, sha256: str) -> Certificate:
    """Return the certificate for a file; an empty one, not finished, if nobody has asked to forget the file."""
    try:
        content = files.read(uri := place(root, sha256))
        return Certificate.model_validate_json(content)
    except FileNotFoundError:
        return Certificate(sha256=sha256)
    except ValidationError as error:
        raise manifest.unread(uri, content, error, advice="restore it from a copy") from None


def write(root: Root, certificate: Certificate) -> Certificate:
    files.put(place(root, certificate.sha256), certificate.model_dump_json(indent=1).encode() + b"\n")
    return certificate


def results(root: Root, *, deleted: Collection[URI] = ()) -> list[Folder]:
    """Return all results below `root`; raise `Damaged` if it is unknown of what one was made.

    Parents that are `deleted` may be gone.
    """
    folders = catalog.read_folders(catalog.list_folders(root, KINDS))
    problems = [folder.damage for folder in folders if folder.damage]
    present = {uri.name for uri in deleted} | {folder.uri.name for folder in folders if folder.manifest}
    for folder in folders:
        parents = [uri for role, uri in folder.parents.items() if role not in ("files", "weights")]
        if gone := [uri for uri in parents if uri.name not in present and not manifest.is_committed(uri)]:
            problems.append(f"{gone[0]}, of which {folder.uri} was made, is gone; restore it, or delete that result")
    if problems:
        raise Damaged(f"{problems[0]}; nothing is forgotten until this is fixed")
    return [folder for folder in folders if folder.manifest]


def check_no_run(root: Root, *, now: float) -> None:
    """Raise `ValueError` if a run is active, or ended early in the last days; `now` is by the storage's clock."""
    markers = uses.markers(root, since=now - uses.DAYS * 24 * 3600)
    if names := [uri for uri in markers if uri.name != f"{uses.FORGETTING}.json"]:
        raise ValueError(
            f"--storage: a run uses {root}, or ended early and may continue: {first(names, _SHOWN)}; wait for it, or "
            "delete the file of a run that has ended, then run the same command again"
        )


def delete(root: Root, names: Iterable[str]) -> None:
    """Delete these results, and all files that no manifest commits: they may be of the image."""
    for name in names:
        catalog.remove(root.child(name))
    for uri, kind in catalog.list_folders(root):
        if catalog.NAME.fullmatch(uri.name) and (kind == SCRATCH or not manifest.is_committed(uri)):
            catalog.remove(uri)
    files.remove(root.child(f"{uses.FOLDER}/{uses.FORGETTING}.json"))
