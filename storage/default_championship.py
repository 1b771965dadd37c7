"""The default championship of a dataset, used unless the user names one."""

import contextlib
import hashlib
import os

from storage import manifest, registry
from storage.manifest import Damaged, Manifest
from storage.uri import URI, Root

_DIGITS = 8
_LONGEST = 64


def of_raw(root: Root, raw: Manifest) -> str:
    """Return the data set's name for a raw dataset; for the user's own data, a name derived from its location.

    Raises `ValueError` if the manifest does not name the data set.
    """
    if "data" not in raw.parameters:
        raise ValueError("does not name the data set it belongs to")
    name, place = str(raw.parameters["data"]), _place(raw)
    return name if place is None else of_own(root, name, place)


def of_own(root: Root, name: str, place: URI) -> str:
    """Return the championship of the user's own data at `place`: the folder's `name` and a digest of the whole URI.

    Earlier versions used the name alone. Such a championship is kept if its champion was trained on data from `place`.
    """
    digest = hashlib.sha256(_canonical(place).encode()).hexdigest()[:_DIGITS]
    full = f"{name[: _LONGEST - _DIGITS - 1].rstrip('-')}-{digest}"
    is_older = registry.latest(root, full) is None and _place_of_champion(root, name) == _canonical(place)
    return name if is_older else full


def _place_of_champion(root: Root, name: str) -> str | None:
    champion = registry.champion(root, name)
    with contextlib.suppress(KeyError, FileNotFoundError, ValueError, Damaged):
        if champion:
            prepared = manifest.load(champion).parent("prepared", of=champion)
            place = _place(manifest.load(manifest.load(prepared).parent("raw", of=prepared)))
            return _canonical(place) if place else None
    return None


def _place(raw: Manifest) -> URI | None:
    """Return the location of the user's own files; none for a downloaded data set."""
    sources = raw.statistics.get("sources", [])
    return URI(sources[0]["url"]) if "image_size" in raw.parameters and sources else None


def _canonical(place: URI) -> str:
    """Resolve symbolic links, so that the same folder always gives the same text."""
    return str(place) if place.is_s3 else os.path.realpath(place)
