"""Class names of Parquet files: each file's own labels, and one list of names that all files are mapped to."""

import re
import unicodedata
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from storage.terminal import count

NO_LABEL = -1
"""Number that means "no label", as in Hugging Face's and scikit-learn's data."""
_SHOWN = 10
"""Most names of a list in an error message."""


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
    if declared is None:
        return str(label)
    return declared[label] if 0 <= label < len(declared) else None


def numbers(
    labels: Iterable[int | str | None], declared: Sequence[str] | None, classes: Sequence[str]
) -> list[int | None]:
    """Return the number of each label of a file among `classes`, the complete list from `of_files`.

    None marks a row without a label, or of another class, which only images to predict may have. A number without a
    name in its file is kept; if `classes` has that number, it becomes -1, because it would be another class.
    """
    number = {name: place for place, name in enumerate(classes)}
    return [None if label is None or is_missing(label) else _number(label, declared, number) for label in labels]


def _number(label: int | str, declared: Sequence[str] | None, number: Mapping[str, int]) -> int | None:
    name = name_of(label, declared)
    if name is not None:
        return number.get(name)
    return int(label) if int(label) not in range(len(number)) else NO_LABEL  # else it would be of an unrelated class


def of_files(surveyed: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return the name of each label, from 0: the names of `train`, in the order of its files.

    `surveyed` has for each file path, split, rows, unlabelled (rows without a label), labels (distinct ones, sorted)
    and names (those that it declares for its numbers, or None). Raises `ValueError` if names of different files
    contradict each other, or train has fewer than two classes.
    """
    _check_labelled(surveyed)
    labelled = [found for found in surveyed if found["labels"]]
    _check_kinds(labelled)
    train = [found for found in labelled if found["split"] == "train"]
    names = dict.fromkeys(name for found in train for name in found["names"] or ())
    others = {label for found in train if not found["names"] for label in found["labels"]}
    names |= dict.fromkeys(map(normal, in_order({str(label) for label in others})))
    for found in labelled:
        _check_learned(found, list(names), train)
    if len(names) < 2:
        raise ValueError(f"train must have at least two different labels, got {list(names)}; -1 means no label")
    return tuple(names)


def remarks(surveyed: Sequence[Mapping[str, Any]], classes: Sequence[str]) -> Iterable[str]:
    """Yield remarks on the labels for the user: rows without a label, and files that number classes differently."""
    for split in dict.fromkeys(found["split"] for found in surveyed):
        if without := [found for found in surveyed if found["split"] == split and found["unlabelled"]]:
            rows = sum(found["unlabelled"] for found in without)
            first = _path(without)
            yield f"{count(rows, 'row')} of {split} without a label (-1 or empty) excluded, the first in {first}"
    declared = [found for found in surveyed if found["names"]]
    if others := [found for found in declared if found["names"] != list(classes[: len(found["names"])])]:
        numbering = "numbers its" if len(others) == 1 else "number their"
        yield f"{count(len(others), 'file')} {numbering} classes differently, such as {_path(others)}; matched by name"
    yield from lookalikes(classes)


def sources(surveyed: Iterable[Mapping[str, Any]]) -> str:
    """Say where the labels of all files are, such as `column label`."""
    return " and ".join(sorted({file["source"] for file in surveyed}))


def lookalikes(classes: Iterable[str]) -> Iterator[str]:
    """Yield a warning for each set of classes whose names differ only in case or blanks."""
    alike: defaultdict[str, list[str]] = defaultdict(list)
    for name in classes:
        alike["".join(name.split()).casefold()].append(name)
    for names in alike.values():
        if len(names) > 1:
            yield f"classes {', '.join(map(repr, names))} differ only in case or blanks; are they one class?"


def _path(surveyed: Sequence[Mapping[str, Any]]) -> str:
    return str(surveyed[0]["path"])


def _check_labelled(surveyed: Sequence[Mapping[str, Any]]) -> None:
    for split in ("train", "test"):
        here = [found for found in surveyed if found["split"] == split]
        rows = sum(found["rows"] for found in here)
        if rows and not any(found["labels"] for found in here):
            raise ValueError(
                f"no row of split {split} has a label: all {rows:,} are -1 or empty, as in {_path(here)}; add "
                f"labels, or use a split with labels as {split}"
            )


def _check_kinds(labelled: Sequence[Mapping[str, Any]]) -> None:
    """Reject a mix of files that number classes without naming them and files with names."""
    bare = [found for found in labelled if not found["names"] and isinstance(found["labels"][0], int)]
    if bare and len(bare) < len(labelled):
        named = next(found for found in labelled if found not in bare)
        what = f"the names {_shown(named['names'])}" if named["names"] else f"text, {_shown(named['labels'])}"
        raise ValueError(
            f"{_path(bare)} has numeric labels {_shown(bare[0]['labels'])} without class names, but {named['path']} "
            f"has {what}; use the same names in all files (metadata `classes`), or text labels in all files"
        )


def _check_learned(found: Mapping[str, Any], names: Sequence[str], train: Sequence[Mapping[str, Any]]) -> None:
    used = dict.fromkeys(name_of(label, found["names"]) for label in found["labels"])
    if unknown := [name for name in used if name is not None and name not in names]:
        its = found["names"] or [name for name in used if name is not None]
        raise ValueError(
            f"{found['path']} has rows of class {', '.join(unknown[:_SHOWN])}, which is not in train: its classes "
            f"are {_shown(its)}, those of {_path(train)} and all of train {_shown(names)}; use the same name for the "
            "same class, or remove those rows"
        )


def _shown(names: Sequence[Any]) -> str:
    return f"[{', '.join(map(str, names[:_SHOWN]))}{', ...' if len(names) > _SHOWN else ''}]"
