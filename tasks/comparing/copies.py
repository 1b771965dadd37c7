"""Copies of images for a person to look at: the user's own files, or else the pixels that are stored of them."""

import contextlib
import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from storage import files, manifest, tables
from storage.uri import URI, DatasetURI
from tasks.jobs import row_origins
from tasks.learning import images

_LONGEST = 200
"""Bytes of a file name without its suffix; it may have 255 in all."""


def write(folder: Path, dataset: DatasetURI, names: Mapping[int, str], *, split: str = "test") -> None:
    """Write the images of rows of a prepared dataset, with `names` by row id, which get the suffix of the file.

    The user's own file is copied if it is still what was ingested; else the stored pixels are written as PNG.
    """
    folder.mkdir(parents=True, exist_ok=True)
    left = {id_: _safe(name) for id_, name in names.items()}
    for id_, content, suffix in _originals(dataset, list(left), split=split):
        (folder / f"{left.pop(id_)}{suffix}").write_bytes(content)
    prepared = manifest.load(dataset)
    shape = images.shape_of(prepared.columns["metadata"])
    splits = ("train", "validation") if split == "train" else (split,)
    for part in (part for part in prepared.files if left and part.split in splits):
        table = tables.read_part(dataset, part)
        chosen = np.flatnonzero(np.isin(table["id"].to_numpy(), list(left)))
        pixels, _ = images.to_arrays(table.take(chosen), shape)
        for id_, image in zip(table["id"].to_numpy()[chosen], pixels, strict=True):
            Image.fromarray(image.squeeze()).save(folder / f"{left[int(id_)]}.png")


def _originals(dataset: DatasetURI, ids: list[int], *, split: str) -> Iterator[tuple[int, bytes, str]]:
    """Yield id, content and suffix of each image file of the user's that is still what was ingested."""
    if (sources := row_origins.table_of(dataset)) is None:
        return
    prepared = manifest.load(dataset)
    raw = manifest.load(prepared.parent("raw", of=dataset)) if "raw" in prepared.parents else prepared
    place = URI(raw.statistics["sources"][0]["url"])
    entries = row_origins.find(sources, split, ids)
    for id_, path, sha256 in zip(ids, entries["path"], entries["sha256"], strict=True):
        if path.lower().endswith(".parquet"):
            continue
        with contextlib.suppress(OSError):  # deleted since
            if hashlib.sha256(content := files.read(place.child(path))).hexdigest() == sha256:
                yield id_, content, Path(path).suffix


def _safe(name: str) -> str:
    """Return `name` without characters that a file name must not have."""
    return re.sub(r"[^\w .,()=-]", "_", name).encode()[:_LONGEST].decode(errors="ignore")
