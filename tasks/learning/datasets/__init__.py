"""Data sets by name: one module each, with a `DATA_SET` that says where its bytes come from and what they must be."""

import dataclasses
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from storage.uri import check_name
from tasks.learning import code

if TYPE_CHECKING:
    import numpy as np

_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclasses.dataclass(frozen=True, kw_only=True)
class SourceFile:
    """One file to download, known by its checksums before anything is fetched."""

    name: str
    """File name, appended to a mirror's address."""
    md5: str
    """Checksum that torchvision checks."""
    sha256: str
    """Checksum that the fingerprint and the lineage rest on."""
    content_sha256: str | None = None
    """Checksum of what the archive holds, where that is one file."""
    shard: str = ""
    """Files of the same shard are read together, apart from all others, and wherever there is room for it."""

    @property
    def stored(self) -> str:
        """Its name in storage: its own unless that has letters that no manifest lists."""
        return self.name if _PLAIN.fullmatch(self.name) else f"file-{self.sha256[:12]}"


class Rows(Protocol):
    """Images of which some rows at a time are brought into memory: an array, a mapped file, or a class of one's own."""

    @property
    def dtype(self) -> "np.dtype[Any]":
        """Of each pixel."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(N, H, W, C)."""

    def __len__(self) -> int: ...

    def __getitem__(self, rows: slice, /) -> "np.ndarray": ...

    def __array__(self, dtype: Any = None, /, *, copy: bool | None = None) -> "np.ndarray": ...


@dataclasses.dataclass(frozen=True)
class Split:
    """One split as it came from the source, in the source's order."""

    name: str
    """`train` or `test`."""
    images: Rows
    """uint8, (N, H, W, C); rows are asked for by slices."""
    labels: "np.ndarray"
    """int64, (N,)."""


class Reader(Protocol):
    """Reads downloaded files into splits."""

    def __call__(self, folder: Path) -> Iterator[Split]:
        """Yield each split once, of all files or, where files have shards, of those of one shard, which `folder` holds.

        Raises `ValueError` when the files do not hold what they should.
        """


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataSet:
    """What is known about a data set before a byte of it is fetched."""

    name: str
    """What folders and the championship are called."""
    files: tuple[SourceFile, ...]
    """What to download."""
    mirrors: tuple[str, ...]
    """Addresses tried in this order, each ending in `/`."""
    classes: tuple[str, ...]
    """Name of each label, from 0."""
    image_shape: tuple[int, int, int]
    """Height, width, channels; uint8."""
    read: Reader
    """From the downloaded files to splits."""
    notice: str | None = None
    """What a person must be told wherever results on it are shown, if anything."""


OWN = "own"
"""In place of a data set's name in recipes for whatever `--data` gives."""


def known() -> list[str]:
    """Names of the data sets there are, sorted."""
    modules = (module.name for module in pkgutil.iter_modules(__path__))
    return sorted(name.replace("_", "-") for name in modules if not name.startswith("_"))


def check_known(name: str) -> None:
    """Raise `ValueError` with the known names unless `name` is one of them, or of code of one's own."""
    if code.is_reference(name):
        if not isinstance(code.resolve(name), DataSet):
            raise ValueError(f"data must be a DataSet, got {name!r}: {code.resolve(name)!r}")
        return
    if name not in (*known(), OWN):
        raise ValueError(f"data must be one of {', '.join(known())}, got {name!r}")
    check_name(name, field="data")


def name_of(data: str) -> str:
    """The name of the data set that a recipe calls `data`."""
    return load(data).name if code.is_reference(data) else data


def load(name: str) -> DataSet:
    """The data set called `name`; raises `ValueError` with the known names when there is none."""
    check_known(name)
    if name == OWN:
        raise ValueError("--data must be given: this recipe is for images of your own, a folder or Parquet")
    if code.is_reference(name):
        own: DataSet = code.resolve(name)
        return own
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    data_set: DataSet = module.DATA_SET
    return data_set
