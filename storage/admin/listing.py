"""A storage root as a table: what is there, how large it is, and how it stands."""

from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from storage import lease
from storage.admin import catalog, championship, text
from storage.admin.catalog import Folder
from storage.manifest import Damaged, Kind
from storage.uri import URI, Root

_THREADS = 8
"""How many leases are asked for at once: on S3 each takes a round trip or two."""


def of(root: Root, kinds: Collection[Kind], champions: Collection[str | None]) -> list[dict[str, Any]]:
    """Kind, URI, rows, bytes, number of files and marks of every result of `kinds`, as JSON values.

    Marks are `champion`, for what is called like one of `champions`, `leased`, `incomplete`, for files without a
    manifest, and `damaged`, for a manifest that cannot be understood or a folder that cannot be looked into.
    """
    folders = catalog.survey(catalog.places(root, kinds))
    names = {URI(champion).name for champion in champions if champion}
    with ThreadPoolExecutor(_THREADS) as pool:
        leased = pool.map(lambda folder: lease.holder(root, folder.uri) is not None, folders)
        return [
            _document(folder, is_champion=folder.kind == "checkpoint" and folder.uri.name in names, is_leased=is_leased)
            for folder, is_leased in zip(folders, leased, strict=True)
        ]


def lines(documents: Sequence[dict[str, Any]]) -> Iterator[str]:
    """The same for people, with a header."""
    rows = [
        (
            document["kind"],
            "-" if document["rows"] is None else f"{document['rows']:,}",
            f"{document['files']:,}",
            text.size(document["bytes"]),
            ", ".join(document["marks"]),
            document["uri"],
        )
        for document in documents
    ]
    return text.table([("kind", "rows", "files", "size", "mark", "name"), *rows], right=(1, 2, 3))


def champions(root: Root) -> tuple[dict[str, tuple[str | None, str]], list[str]]:
    """For each data set its champion, if any, and why it is, and in one line each what of the registry is damaged."""
    standings: dict[str, tuple[str | None, str]] = {}
    wrong = []
    for data in championship.data_sets(root):
        try:
            reigns = championship.reigns(championship.decisions(root, data))
        except Damaged as error:
            wrong.append(str(error))
        else:
            standings[data] = (reigns[-1].champion, reigns[-1].reason) if reigns else (None, "none was good enough")
    return standings, wrong


def _document(folder: Folder, *, is_champion: bool, is_leased: bool) -> dict[str, Any]:
    made = folder.manifest
    marks = {
        "champion": is_champion,
        "leased": is_leased,
        "incomplete": folder.committed is None and not folder.damage,
        "damaged": bool(folder.damage),
    }
    return {
        "kind": folder.kind,
        "uri": folder.uri,
        "rows": made.rows if made and made.rows else None,
        "bytes": sum(file.size for file in made.files) if made else folder.size,
        "files": len(made.files if made else folder.found),
        "marks": [mark for mark, holds in marks.items() if holds],
    }
