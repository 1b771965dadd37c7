"""Lineage of one row: its prediction, and the file of the user's that it came from, with the file's SHA-256."""

import difflib
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow.compute as pc

from storage import manifest, tables
from storage.manifest import Manifest
from storage.uri import URI

_SOURCES = "sources-"
"""Start of the name of the file of a raw dataset that lists the user's files with their first ids and SHA-256."""
_COLUMNS = ["split", "first_id", "rows", "path", "sha256", "problem"]


def trace(uri: URI, *, file: str, row: int | None) -> Iterator[str]:
    """Yield lines about the row of `file` that the result `uri` is about: its predictions, and its raw file.

    Args:
        uri: A committed result.
        file: Path of the file below the user's folder, or only its name if no other file has it.
        row: Number of the row in a Parquet file, from 0; None for an image.

    Raises:
        ValueError: The result knows no such file or row; the message names the next step.
    """
    results = list(_ancestors(uri))
    raw = [
        (place, recorded, part)
        for place, recorded in results
        for part in recorded.files
        if part.path.startswith(_SOURCES)
    ]
    if not raw:
        raise ValueError(f"--file: {uri} was not made from files of your own, so its rows have no file; omit --file")
    place, recorded, part = raw[0]
    source = _source(tables.read_part(place, part, columns=_COLUMNS).to_pylist(), file, row)
    id_ = source["first_id"] + (row or 0)
    name = source["path"] if row is None else f"{source['path']} row {row}"
    for result, of in results:
        if of.kind == "predictions":
            yield f"{name}  {_prediction(result, of, source, id_)}"
    folder = recorded.statistics["sources"][0]["url"]
    yield f"{name}  id {id_} of split {source['split']}  sha256 {source['sha256']}  from {folder}/{source['path']}"


def _ancestors(uri: URI) -> Iterator[tuple[URI, Manifest]]:
    """Yield `uri` and what it was made from, each once and as far as it exists, with the manifests."""
    pending, seen = [uri], set()
    while pending:
        place = pending.pop(0)
        if place not in seen and (recorded := manifest.find(place)):
            yield place, recorded
            pending += [recorded.parent(role, of=place) for role in recorded.parents]
        seen.add(place)


def _source(sources: Sequence[dict[str, Any]], file: str, row: int | None) -> dict[str, Any]:
    paths = [source["path"] for source in sources]
    named = [source for source in sources if source["path"] == file]
    named = named or [source for source in sources if source["path"].endswith(f"/{file}")]
    if not named:
        similar = difflib.get_close_matches(file, paths, n=1)
        hint = f"did you mean {similar[0]!r}?" if similar else f"give its path below your folder, such as {paths[0]!r}"
        raise ValueError(f"--file: no row is from {file!r}; {hint}")
    if len(named) > 1:
        places = ", ".join(repr(source["path"]) for source in named[:2])
        raise ValueError(f"--file: several files are called {file!r}; give the whole path of one: {places}, ...")
    rows = named[0]["rows"]
    if (row is None and rows != 1) or not 0 <= (row or 0) < rows:
        raise ValueError(f"--row must be a number from 0 to {rows - 1} for {named[0]['path']!r}, got {row}")
    return named[0]


def _prediction(uri: URI, recorded: Manifest, source: dict[str, Any], id_: int) -> str:
    splits = (source["split"], "validation") if source["split"] == "train" else (source["split"],)
    for part in (part for part in recorded.files if part.split in splits):
        table = tables.read_part(uri, part, columns=["id", "class_name", "probability"])
        for row in table.filter(pc.equal(table["id"], id_)).to_pylist():
            if row["class_name"] is None and row["probability"] is not None:
                return f"no class: its highest probability, {row['probability']:.4f}, is below --min-confidence"
            if row["class_name"] is None:
                return f"no prediction: {source['problem'] or 'no image'}"
            return f"predicted {row['class_name']!r} with probability {row['probability']:.4f}"
    return f"no prediction: {source['problem'] or 'its row was left out, or is of a split that was not predicted'}"
