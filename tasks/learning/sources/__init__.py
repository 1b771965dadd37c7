"""Sources by name: one module each, with a `SOURCE` that lists its files, their mirrors and their checksums."""

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from storage.uri import check_name, redact
from tasks.learning import user_code

if TYPE_CHECKING:
    import numpy as np

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file to download, with checksums known in advance."""

    name: str
    """File name, appended to a mirror's address."""
    md5: str
    """Empty if it is not published."""
    sha256: str
    """Used in the fingerprint and the lineage; empty for published weights."""
    copy: str = ""
    """Address of a copy on this machine or in storage, if there is one, which is tried before all mirrors."""
    model: str = ""
    """Model whose published weights the file gets; they come from timm or a package."""

    @property
    def stored(self) -> str:
        """Name in storage: `name`, unless that has characters that a manifest does not allow."""
        return self.name if _PLAIN.fullmatch(self.name) else f"file-{self.sha256[:12]}"


@dataclasses.dataclass(frozen=True)
class Split:
    """One split with its rows in the order of the source."""

    name: str
    """`train` or `test`."""
    images: "np.ndarray"
    """uint8, (N, H, W, C); rows are read by slices, so a mapped file, or any object with such slices, will do."""
    labels: "np.ndarray"
    """int64, (N,)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Download:
    """Files to download, known before: those of a source, or pretrained weights."""

    name: str
    """Name of their folder, and of a source's registered model."""
    files: tuple[SourceFile, ...]
    mirrors: tuple[str, ...]
    """Addresses, tried in this order, each ending in `/`."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Source(Download):
    """Description of a source, known before anything is downloaded."""

    classes: tuple[str, ...]
    """Name of each label, from 0."""
    image_shape: tuple[int, int, int]
    """Height, width, channels; uint8."""
    read: Callable[[Path], Iterator[Split]]
    """Function that reads the downloaded files in a folder and yields each split once. It raises `ValueError` if they
    have unexpected content."""
    notice: str | None = None
    """Note to show users beside every result on this source, if any."""

    def __post_init__(self) -> None:
        """Raise `ValueError` for an invalid name, or a mirror with a secret in its address, which reports show."""
        check_name(self.name, field="name of a source")
        for mirror in self.mirrors:
            if not is_public(mirror):
                raise ValueError(
                    f"mirrors must be addresses without credentials or query, got {redact(mirror)!r}; download the "
                    "files yourself and name their folder with --mirror"
                )


def is_public(address: str) -> bool:
    """Return whether `address` is a URL without credentials, query and fragment."""
    try:
        parts = urlsplit(address)
    except ValueError:
        return False
    return "@" not in parts.netloc and not parts.query + parts.fragment


USER_IMAGES = "user-images"
"""Name that recipes give to the user's images, passed by `--data`."""


def known() -> list[str]:
    return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(__path__))


def check_known(name: str) -> None:
    """Raise `ValueError` unless `name` is a source, as in `load`, or the user's images."""
    if name != USER_IMAGES:
        load(name)


def name_of(data: str) -> str:
    """Return the name of the source for `data` of a recipe, which may be a reference to the user's own code."""
    return load(data).name if user_code.is_reference(data) else data


def load(name: str) -> Source:
    """Load the source `name`: the project's, or a reference to the user's own code.

    Raises `ValueError` listing the known names if there is none.
    """
    if name == USER_IMAGES:
        raise ValueError("--data is required: this recipe is for your own images, in folders or Parquet")
    if not user_code.is_reference(name) and name not in known():
        raise ValueError(f"source must be one of {', '.join(known())}, got {name!r}")
    if user_code.is_reference(name):
        source = user_code.resolve(name)
    else:
        source = importlib.import_module(f"{__name__}.{name.replace('-', '_')}").SOURCE
    if not isinstance(source, Source):
        raise ValueError(f"source must be a Source, got {name!r}: {source!r}")
    return source
