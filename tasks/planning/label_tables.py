"""Tables beside the images, such as labels.csv: labels are never read from them, and the user is told so."""

import itertools
import re
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath

from storage import files
from storage.uri import URI

_ENDINGS = (".csv", ".tsv", ".jsonl", ".xlsx")
_MOST_BYTES, _MOST_ROWS = 2**20, 1000
"""Beginning of a table that is looked at."""
_SHOWN = 5
_REMEDY = "labels are not read from tables; put the images of each class into a folder of its name"


def among(paths: Sequence[str]) -> list[str]:
    """Return the tables in `paths`."""
    return sorted(path for path in paths if path.lower().endswith(_ENDINGS))


def hint(paths: Sequence[str]) -> str:
    """Return text for an error about missing class folders; empty if there is no table that may have the labels."""
    tables = among(paths)
    return f"; left out: {', '.join(tables[:_SHOWN])}: {_REMEDY}" if tables else ""


def check(uri: URI, paths: Sequence[str], class_of: Mapping[str, str]) -> None:
    """Raise `ValueError` if the folders are parts of one set (`images_1`, `images_2`) that a table describes.

    Args:
        uri: The user's folder.
        paths: Files there that are not images.
        class_of: Folder that would be the class, by path of the image.
    """
    folders = sorted(set(class_of.values()))
    if len({re.sub(r"\d+", "", folder) for folder in folders}) > 1:
        return
    folder_of = {PurePosixPath(path).stem: folder for path, folder in class_of.items()}
    for table in among(paths):
        rows = _rows(uri.child(table))
        says_folder = [folder_of[word] in row for row in rows for word in row if word in folder_of]
        if says_folder and not any(says_folder):
            raise ValueError(
                f"{table} lists the images, but not by the folders {', '.join(folders[:_SHOWN])}, which differ only in "
                f"their numbers: {_REMEDY}, or move {table} elsewhere if these folders are the classes"
            )


def _rows(table: URI) -> list[set[str]]:
    """Return the words of each row, and of paths and file names in it their parts, without suffixes."""
    text = next(iter(files.pieces(table)), b"")[:_MOST_BYTES].decode(errors="replace")
    rows = ({word.strip() for word in re.split(r"""[,;:\t"'/\\{}\[\]]""", line)} for line in text.splitlines())
    return [row | {PurePosixPath(word).stem for word in row} for row in itertools.islice(rows, _MOST_ROWS)]
