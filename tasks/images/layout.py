"""Layout of the user's files: one rule says which split and class each path has; anything else is refused.

Images are in `<class>/...`, or in `{train,test}/<class>/...`. A word in a folder's name (`seg_train`) makes it a split.
Either form may be inside wrapping folders: folders that are alone and hold only folders.
"""

import dataclasses
import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence

from storage.terminal import first
from tasks.images import class_names
from tasks.images.class_names import normal

EXPECTED = (
    "expected <class>/*.png (jpg, ...), or train/<class>/... and test/<class>/..., or train*.parquet and test*.parquet"
)
"""Layouts that are understood, for messages."""
_SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_SPLITS |= dict.fromkeys(("validation", "valid", "val", "dev"), "validation")
"""Split by the word that names it."""
VALIDATION = "in a split validation: validation rows are taken from train"
"""Reason for which such files are left out."""
_NO_CLASS = re.compile(
    r"annotations?|images?|labels?|masks?|trimaps?|jpegimages|segmentation\w*|\w*(images|part|batch|fold)[_ -]?\d+",
    re.IGNORECASE,
)
"""Names of folders in data sets for detection or segmentation, or of parts of a data set without class folders."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """What the paths mean."""

    splits: Mapping[str, str]
    """Split of each file that is used: `train`, `test`, or empty if its content decides."""
    class_of: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Class of each image; empty for Parquet, whose rows have labels."""
    classes: tuple[str, ...] = ()
    """Names of the classes in the order of their labels."""
    where: str = ""
    """Where the labels are, in words."""
    left_out: Mapping[str, Sequence[str]]
    """Paths of the other files by reason."""


def class_above(path: str, classes: Collection[str]) -> str | None:
    """Return the first folder of `path`, from the top, that is one of `classes`."""
    return next((name for folder in path.split("/")[:-1] if (name := normal(folder)) in classes), None)


def below_class(path: str, class_name: str) -> list[str]:
    """Return the folders of `path` below that of its class, from the top."""
    folders = [normal(folder) for folder in path.split("/")[:-1]]
    return folders[folders.index(class_name) + 1 :] if class_name in folders else []


def digest_of_folder(path: str, class_name: str) -> bytes | None:
    """Return the SHA-256 of the names of class and first folder below it; None for a file without such a folder."""
    below = below_class(path, class_name)
    return hashlib.sha256(f"{class_name}/{below[0]}".encode()).digest() if below else None


def of_parquet(paths: Sequence[str]) -> Layout:
    """Read the split of each Parquet file from the first folder, or the file, whose name has the word of a split.

    All files of a split must have the same name up to that word. Raises `ValueError` if a split is missing or has
    several names.
    """
    name_of: dict[str, tuple[str, str]] = {}
    left_out: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths:
        parts = path.split("/")
        marked = [(depth, *found) for depth, part in enumerate(parts) if (found := split_in(part))]
        if marked:
            depth, word, split = marked[0]
            name_of[path] = "/".join([*parts[:depth], word]), split
        else:
            left_out["no folder or file name contains train or test"].append(path)
    used = _assign(dict(name_of.values()))
    for path, (name, _) in name_of.items():
        if name not in used:
            left_out[VALIDATION].append(path)
    splits = {path: used[name] for path, (name, _) in name_of.items() if name in used}
    return Layout(splits=splits, where="column label", left_out=left_out)


def of_images(paths: Sequence[str], *, name: str) -> Layout:
    """Read split and class of each image from its folders; raise `ValueError` if the rule does not apply.

    `name` is the folder with all of them, for messages.
    """
    folders = _Folders(paths)
    top = folders.unwrapped("", stop=split_in)
    split_of = {folder: found[1] for folder in folders.below(top) if (found := split_in(folder))}
    bases = {top: ""}
    if split_of:
        train, test = (f"{top}{folder}/" for folder in _assign(split_of))
        train = folders.unwrapped(train)
        learned = set(map(normal, folders.below(train)))
        bases = {train: "train", folders.unwrapped(test, stop=lambda inner: normal(inner) in learned): "test"}
    splits: dict[str, str] = {}
    class_of: dict[str, str] = {}
    left_out: defaultdict[str, list[str]] = defaultdict(list)
    inside: defaultdict[str, set[str]] = defaultdict(set)
    for path in paths:
        base = next((base for base in bases if path.startswith(base)), None)
        folder, is_below, rest = path[len(base or "") :].partition("/")
        if base is not None and is_below:
            splits[path], class_of[path] = bases[base], normal(folder)
            if base == next(iter(bases)):
                inside[normal(folder)].add(rest[: rest.rfind("/") + 1])
        else:
            is_validation = split_of.get(path[len(top) :].partition("/")[0]) == "validation"
            left_out[VALIDATION if is_validation and base is None else "in no class folder"].append(path)
    where = " and ".join(bases) if split_of else f"{name}/{top}"
    classes = checked_classes(splits, class_of, {split: base or f"{name}/" for base, split in bases.items()})
    names = set(classes)
    _check_depth(inside, names)
    for path, of_training in class_of.items():  # prediction takes the first folder that is a class
        if (of_prediction := class_above(path, names)) != of_training:
            raise ValueError(f"{path}: {of_prediction}, above class folder {of_training}, is named like a class")
    where = f"the folders below {where}"
    return Layout(splits=splits, class_of=class_of, classes=classes, where=where, left_out=left_out)


class _Folders:
    """Folders above the paths of images; each ends in `/`."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._with_images = {path[: path.rfind("/") + 1] for path in paths}
        self._below: defaultdict[str, set[str]] = defaultdict(set)
        for folder in self._with_images:
            above = ""
            for name in folder.split("/")[:-1]:
                self._below[above].add(name)
                above += f"{name}/"

    def below(self, folder: str) -> list[str]:
        """Return the sorted names of the folders directly below `folder`."""
        return sorted(self._below.get(folder, ()))

    def unwrapped(self, folder: str, *, stop: Callable[[str], object] = lambda name: False) -> str:
        """Descend from `folder` while it holds one folder, with folders and without images; not into one of `stop`."""
        while len(names := self.below(folder)) == 1 and not stop(names[0]):
            if (inner := f"{folder}{names[0]}/") in self._with_images:
                break
            folder = inner
        return folder


def split_in(name: str) -> tuple[str, str] | None:
    """Return `name` up to the word of a split, in lower case, and the split; None if it has none, or several.

    `Training Set`, `training_set` and `TrainingSet` have the same words. Digits are a word of their own.
    """
    spaced = re.sub("([a-z])([A-Z])", r"\1 \2", name).lower()
    words = [word for word in re.finditer("[a-z]+", spaced) if word[0] in _SPLITS]
    splits = {_SPLITS[word[0]] for word in words}
    return (spaced[: words[0].end()], splits.pop()) if len(splits) == 1 else None


def _assign(split_of: Mapping[str, str]) -> dict[str, str]:
    """Return the names that are used as train and test, in this order; validation is test where there is none.

    Raises `ValueError` if a split is missing, or several names contain it.
    """
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name, split in sorted(split_of.items()):
        names[split].append(name)
    names["test"] = names["test"] or names["validation"]
    for split in ("train", "test"):
        if len(names[split]) != 1:
            others = f" beside {', '.join(split_of)}" if split_of else ""
            read = ", ".join(names[split]) or f"none{others}"
            raise ValueError(
                f"there must be one split {split}, got {read}; if a class has such a name, rename its folder; to take "
                "the test rows from train, name that folder"
            )
    return {names[split][0]: split for split in ("train", "test")}


def checked_classes(
    splits: Mapping[str, str], class_of: Mapping[str, str], folder_of: Mapping[str, str]
) -> tuple[str, ...]:
    """Return the class names in order; raise `ValueError` if they cannot be learned.

    `folder_of` has the folder that holds the class folders of each split.
    """
    names = {split: {class_of[path] for path in splits if splits[path] == split} for split in folder_of}
    for split, folder in folder_of.items():
        if not names[split]:
            unlabelled = "; if its images have no labels, move it elsewhere" if split == "test" else ""
            raise ValueError(f"there are no class folders with images in {folder}{unlabelled}")
    learned = next(iter(names.values()))
    if unlearned := sorted(set().union(*names.values()) - learned):
        raise ValueError(f"class {first(unlearned)} has test images but no training images")
    class_names.check_number(len(learned))
    if len(learned) < 2:
        raise ValueError(f"there must be at least two classes, got {', '.join(learned)}")
    if all(map(_NO_CLASS.fullmatch, learned)):
        raise ValueError(f"{first(sorted(learned))} are not names of classes; if they are classes, rename the folders")
    return tuple(class_names.in_order(learned))


def _check_depth(inside: Mapping[str, set[str]], classes: set[str]) -> None:
    """Raise `ValueError` if the folders in the class folders may be the classes: all have the same, or some copies.

    `inside` has the paths of the folders with images in each class folder; its own is empty.
    """
    common = set.intersection(*inside.values())
    if len(common) > 1 and not any("" in folders for folders in inside.values()):
        outer, inner = (first(sorted(names)) for names in (inside, common))
        raise ValueError(
            f"{outer} have the same folders {inner}: name the one whose folders are the classes, or make the classes "
            "the upper folders"
        )
    for outer, folders in inside.items():
        copies = {name for folder in folders if (name := normal(folder.partition("/")[0])) in classes}
        if len(copies) > 1:
            raise ValueError(
                f"{outer}/ has folders named like the classes beside it, {first(sorted(copies))}; if it is "
                "a copy, move it elsewhere"
            )
