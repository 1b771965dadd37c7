"""Class names of Parquet files: what each file's labels mean, and one list of names that all files are mapped to."""

import dataclasses
import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence

from storage.terminal import first

NO_LABEL = -1
"""Number that means "no label", as in Hugging Face's and scikit-learn's data."""
_MOST = 10_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class FileLabels:
    """Labels of one Parquet file."""

    path: str
    split: str
    rows: int
    names: list[str] | None
    """Names that the file declares for its numbers; None if its labels are text."""
    counts: dict[str, int]
    """Rows of each class that occurs."""


def check_number(num_classes: int) -> None:
    """Raise `ValueError` for more classes than a confusion matrix in memory can have."""
    if num_classes > _MOST:
        raise ValueError(f"there must be at most {_MOST:,} classes, got {num_classes:,}; use fewer, or other labels")


def is_missing(label: int | str | None) -> bool:
    """Return True if `label` means "no label": None, -1 or blank text."""
    return label is None or label == NO_LABEL or (isinstance(label, str) and not label.strip())


def normal(name: str) -> str:
    """Return `name` in Unicode's NFC form, since an accented letter has two encodings that look the same."""
    return unicodedata.normalize("NFC", name)


def in_order(names: Collection[str]) -> list[str]:
    """Sort class names: whole numbers by value, so that classes called 0 to 11 get these labels; others as text."""
    are_numbers = all(re.fullmatch(r"-?\d{1,18}", name, re.ASCII) for name in names)
    return sorted(names, key=(lambda name: (int(name), name)) if are_numbers else None)


def name_of(label: int | str, declared: Sequence[str] | None) -> str | None:
    """Return the class that a file means by `label`; None for a number beyond the names that it declares."""
    if isinstance(label, str):
        return normal(label)
    if declared is None:  # of images to predict
        return str(label)
    return declared[label] if 0 <= label < len(declared) else None


def numbers(
    labels: Iterable[int | str | None], declared: Sequence[str] | None, classes: Sequence[str]
) -> list[int | None]:
    """Return the number of each label of a file among `classes`, the complete list from `of_files`.

    None marks a row without a label, or of another class, which only images to predict may have. -1 marks a number for
    which the file declares no name.
    """
    number: dict[str | None, int] = {name: place for place, name in enumerate(classes)}
    number[None] = NO_LABEL
    return [None if label is None or is_missing(label) else number.get(name_of(label, declared)) for label in labels]


def of_files(files: Sequence[FileLabels]) -> tuple[str, ...]:
    """Return the name of each label, from 0: the names in `train` that have rows, in the order of its files.

    Raises `ValueError` if names of different files contradict each other, or train has fewer than two classes.
    """
    for split in ("train", "test"):
        its = [file for file in files if file.split == split]
        rows = sum(file.rows for file in its)
        if (rows or split == "train") and not any(file.counts for file in its):
            raise ValueError(
                f"no row of split {split} has a label: all {rows:,} are -1 or empty, as in {its[0].path}; add labels, "
                f"or use a split with labels as {split}"
            )
    train = [file for file in files if file.split == "train" and file.counts]
    with_rows = {name for file in train for name in file.counts}
    names = dict.fromkeys(name for file in train for name in file.names or () if name in with_rows)
    names |= dict.fromkeys(in_order({name for file in train if not file.names for name in file.counts}))
    for file in files:
        if unknown := [name for name in file.counts if name not in names]:
            raise ValueError(
                f"{file.path} has rows of class {first(unknown)}, which is not in train: its classes are "
                f"[{first(file.names or file.counts)}], those of {train[0].path} and all of train "
                f"[{first(names)}]; use the same name for the same class, or remove those rows"
            )
    if len(names) < 2:
        raise ValueError(f"train must have at least two different labels, got {list(names)}; -1 means no label")
    return tuple(names)


def where(labels: str, files: Sequence[FileLabels], classes: Collection[str]) -> str:
    """Return `labels`, which says where the labels are, with the names in the files that are no classes."""
    unused = [*dict.fromkeys(name for file in files for name in file.names or ()).keys() - set(classes)]
    return f"{labels}; names without rows are left out: [{first(in_order(unused))}]" if unused else labels
