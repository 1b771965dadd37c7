"""Versions of a data set: its raw datasets in storage, oldest first."""

import contextlib
from collections.abc import Sequence

from storage import access, champions, manifest
from storage.admin import catalog
from storage.admin.catalog import Folder
from storage.manifest import Damaged
from storage.uri import DatasetURI, Root
from tasks.learning import sources


def known(root: Root, data: str) -> list[DatasetURI]:
    """List the committed raw datasets of data set `data` below `root`, by the time of their commit.

    The time comes from the manifest, so that it survives a copy of the root. `user-images` selects the datasets of all
    folders of user images, each of which is named after its folder, but not images that batch prediction stored.

    Raises `ValueError` if there is none or the storage cannot be read, and `Damaged` for a damaged manifest.
    """
    folders: list[Folder] = []
    with contextlib.suppress(FileNotFoundError):
        access.check_readable(root)
        folders = catalog.read_folders(catalog.list_folders(root, ["raw"]))
    data_of = {}
    for folder in sorted(folders, key=lambda folder: (folder.created, folder.uri)):
        if folder.damage:
            manifest.load(folder.uri)  # raises an error of the storage as what it is
            raise Damaged(folder.damage)
        if folder.manifest:
            parameters = folder.manifest.parameters
            is_user_images = data == sources.USER_IMAGES and "image_size" in parameters and "classes" not in parameters
            data_of[DatasetURI(folder.uri)] = data if is_user_images else parameters.get("data")
    if data not in data_of.values():
        others = ", ".join(sorted({str(name) for name in data_of.values()}))
        hint = f"there are datasets of {others}: choose a matching --recipe" if others else "run the pipeline first"
        raise ValueError(f"--storage: {root} has no raw dataset of data set {data!r}; {hint}")
    return [uri for uri, name in data_of.items() if name == data]


def check_one(versions: Sequence[DatasetURI], *, named: bool) -> None:
    """Raise `ValueError` if `versions` are of several data sets, which users' own images may be.

    Folders of one name at different places are different data sets, unless their registered model is `named`.
    """
    names, hint = {uri.name.rpartition("-")[0] for uri in versions}, ""
    if len(names) == 1 and not named:
        names = {champions.default_of_raw(manifest.load(uri)) for uri in versions}
        hint = ", or choose one --register-as NAME for all"
    if len(names) > 1:
        raise ValueError(
            f"version: the versions belong to several data sets, {', '.join(sorted(names))}; name the versions of one "
            f"(`data-to-model lineage URI` shows the folder of each){hint}"
        )


def chosen(
    versions: Sequence[DatasetURI], *, names: Sequence[str] = (), first: str | None = None, last: str | None = None
) -> list[DatasetURI]:
    """Select `versions` by `names`, or from `first` to `last` inclusive; all of them by default.

    A name is the folder's name or the whole URI. Raises `ValueError` naming the first one that does not exist.
    """
    if names and (first or last):
        raise ValueError("--from and --to cannot be combined with version names")
    if names:
        wanted = {_position(versions, name, option="version") for name in names}
        return [versions[position] for position in sorted(wanted)]
    start = _position(versions, first, option="--from") if first else 0
    end = _position(versions, last, option="--to") if last else len(versions) - 1
    if start > end:
        raise ValueError(f"--from {first} is newer than --to {last}: swap them")
    return list(versions[start : end + 1])


def _position(versions: Sequence[DatasetURI], name: str, *, option: str) -> int:
    for position, uri in enumerate(versions):
        if name.rstrip("/") in (uri.name, str(uri)) or name.rstrip("/").endswith(f"/{uri.name}"):
            return position
    raise ValueError(f"{option} must be one of {', '.join(uri.name for uri in versions)}, got {name!r}")
