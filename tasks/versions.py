"""The versions of a data set: its raw datasets in storage, oldest first."""

from collections.abc import Sequence

from storage import files, manifest
from storage.admin.catalog import check_links
from storage.uri import DatasetURI, Root


def known(root: Root, data: str) -> list[DatasetURI]:
    """Every committed raw dataset of data set `data` below `root`, by the time of its commit.

    Raises `ValueError` when there is none or the storage cannot be read.
    """
    folder = root.child("datasets/raw")
    try:
        files.check_readable(root)
        check_links(root)
        entries = files.walk(folder)
    except FileNotFoundError:
        entries = []
    committed = sorted(
        (entry.modified, entry.path.partition("/")[0])
        for entry in entries
        if entry.path.count("/") == 1 and entry.path.endswith(f"/{manifest.NAME}")
    )
    uris = [DatasetURI(folder.child(name)) for _, name in committed]
    of = {uri: manifest.load(uri).parameters.get("data") for uri in uris}
    if data not in of.values():
        others = ", ".join(sorted({str(name) for name in of.values()}))
        hint = f"there are some of {others}: choose their --recipe" if others else "run the pipeline first"
        raise ValueError(f"--storage: {root} has no raw dataset of data set {data!r}; {hint}")
    return [uri for uri in uris if of[uri] == data]


def chosen(
    versions: Sequence[DatasetURI], *, names: Sequence[str] = (), first: str | None = None, last: str | None = None
) -> list[DatasetURI]:
    """Those of `versions` that are named, or that lie from `first` to `last`, both included; all when nothing is said.

    A name is that of the folder or the whole URI. Raises `ValueError` naming one that is not among them.
    """
    if names and (first or last):
        raise ValueError("--from and --to cannot be combined with versions by name: give one or the other")
    if names:
        wanted = {_position(versions, name, option="version") for name in names}
        return [versions[position] for position in sorted(wanted)]
    start = _position(versions, first, option="--from") if first else 0
    end = _position(versions, last, option="--to") if last else len(versions) - 1
    if start > end:
        raise ValueError(f"--from {first} is younger than --to {last}: swap them")
    return list(versions[start : end + 1])


def _position(versions: Sequence[DatasetURI], name: str, *, option: str) -> int:
    for position, uri in enumerate(versions):
        if name.rstrip("/") in (uri.name, str(uri)) or name.rstrip("/").endswith(f"/{uri.name}"):
            return position
    raise ValueError(f"{option} must be one of {', '.join(uri.name for uri in versions)}, got {name!r}")
