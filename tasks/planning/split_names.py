"""Names of splits: which folders, or prefixes of file names, are the training rows and which the test rows."""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Collection, Iterable

_SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_STANDS_IN = ("validation", "valid", "val", "dev")
"""Substitutes for a missing split `test`; the first that exists is used."""
LAYOUT = (
    "expected <class>/*.png (jpg, ...), or train/<class>/... and test/<class>/..., or train-*.parquet and "
    "test-*.parquet"
)
"""Layouts that are understood, for messages."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Assigned:
    """What each name is used for."""

    splits: dict[str, str]
    """`train` or `test` by name."""
    reasons: dict[str, str]
    """Why files are left out, by name of a split that is not used."""
    notes: list[str]
    """Warnings for the user."""


def named(name: str) -> str | None:
    """Return the split that `name` has as a word (`train` for `seg_train`), or None if it has none or several."""
    splits = {_SPLITS.get(word, word) for word in words(name) if is_exact(word)}
    return splits.pop() if len(splits) == 1 else None


def words(name: str) -> list[str]:
    """Return the words of `name` in lower case: `Training Set`, `training_set` and `TrainingSet` have the same."""
    return [word for word in re.split("[^a-z]+", re.sub("([a-z])([A-Z])", r"\1 \2", name).lower()) if word]


def is_exact(name: str) -> bool:
    """Return whether `name` is that of a split, and not only contains one."""
    return name.lower() in _SPLITS or name.lower() in _STANDS_IN


def are_complete(names: Iterable[str]) -> bool:
    """Return whether training and test rows, or a substitute, are among `names`."""
    splits = set(map(named, names))
    return "train" in splits and not splits.isdisjoint(("test", *_STANDS_IN))


def assign(names: Collection[str]) -> Assigned:
    """Choose the names of train and test; a name that is exactly a split comes before one that contains it.

    Raises `ValueError` if a split is missing, or several names contain it.
    """
    of: defaultdict[str, list[str]] = defaultdict(list)
    for name in sorted(names):
        if split := named(name):
            of[split].append(name)
    chosen = {split: list(filter(is_exact, its)) or its for split, its in of.items()}
    for split, its in chosen.items():
        if len(its) > 1 and not is_exact(its[0]):
            raise ValueError(f"{', '.join(its)} are all named like split {split}; keep one, or rename it to {split}")
    used = {split: split for split in chosen if split not in _STANDS_IN}
    notes = []
    if spare := [split for split in _STANDS_IN if split in chosen and "test" not in chosen]:
        used[spare[0]] = "test"
        notes.append(f"there is no split test; {chosen[spare[0]][0]} is used instead")
    if missing := sorted({"train", "test"} - set(used.values())):
        read = [f"; {name} was read as split {split}" for split, its in chosen.items() for name in its]
        raise ValueError(f"there is no split {' and no split '.join(missing)}{''.join(read)}; {LAYOUT}")
    reasons = {
        name: f"named like split {split}, for which {chosen[split][0]} is used"
        if split in used
        else f"split {name}: validation rows are taken from train"
        for split, its in of.items()
        for name in its
    }
    return Assigned(
        splits={name: used[split] for split in used for name in chosen[split]}, reasons=reasons, notes=notes
    )
