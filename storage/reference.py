"""References: names of results in manifests and decisions that stay valid when the storage root is moved or copied.

The URI of a result is `<root>/<shelf>/<name>`; a shelf is the folder for one kind of result. Files below the same root
refer to it as `<shelf>/<name>`; files elsewhere use its URI.
"""

import os

from storage.kinds import KINDS
from storage.uri import URI, Root


def of(uri: URI, *, root: Root) -> str:
    """Return the reference to `uri` from below `root`: relative below `root`, even through a link, else the URI."""
    base, relative = _parts(uri)
    return relative if base is not None and is_same(base, root) else str(uri)


def resolve(reference: str, *, root: Root) -> URI:
    """Return the URI of the result that `reference` names.

    It is `<shelf>/<name>` or a URI, else raises `ValueError`; `root` is the storage root of the file that contains it.
    """
    is_uri = reference.startswith("/") or "://" in reference
    uri = URI(reference) if is_uri else root.child(reference)
    base, relative = _parts(uri)
    if not is_uri and (base, relative) != (root, reference):
        raise ValueError(
            "a reference must be a URI or a path relative to the storage root such as "
            f"checkpoints/NAME, got {reference!r}"
        )
    return root.child(relative) if base is not None and is_same(base, root) else uri


def root_of(uri: URI) -> Root:
    """Return the storage root of the result `uri`; for a copy outside the shelves, its parent folder."""
    return _parts(uri)[0] or Root(uri.parent)


def is_same(root: Root, other: Root) -> bool:
    """Return whether both are the same storage root, even if one is reached through a link or another mount."""
    if root == other or root.is_s3 or other.is_s3:
        return root == other
    try:
        return os.path.samefile(root, other)
    except OSError:  # one of them does not exist
        return False


def _parts(uri: URI) -> tuple[Root | None, str]:
    """Split the URI of a result into its root and its path below that; the root is none outside the shelves."""
    for shelf in (kind.folder for kind in KINDS.values()):
        if uri.parent.endswith(f"/{shelf}"):
            base = uri.parent.removesuffix(f"/{shelf}")
            if base != "s3:/":  # a bucket with the name of a shelf
                return Root(base or "/"), f"{shelf}/{uri.name}"
    return None, str(uri)
