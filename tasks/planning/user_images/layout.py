"""Layout of the user's files: the split and the class that each path says; what is ambiguous is refused."""

import dataclasses
import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from tasks.jobs.ingest import class_names
from tasks.jobs.ingest.class_names import normal

EXPECTED = (
    "expected <class>/*.png (jpg, ...), or train/<class>/... and test/<class>/..., or train-*.parquet and "
    "test-*.parquet"
)
"""Layouts that are understood, for messages."""
_INSTEAD_OF_TEST = ("validation", "valid", "val", "dev")
"""Substitutes for a missing split `test`; the first that exists is used."""
_SPLITS = {"train": "train", "training": "train", "test": "test", "testing": "test"}
_SPLITS |= {name: name for name in _INSTEAD_OF_TEST}
"""Split by the word that names it."""
_TABLES = (".csv", ".tsv", ".jsonl", ".xlsx")
_BY_FOLDERS = "labels are not read from tables; put the images of each class into a folder of its name"
_RENAME = "if a class is named like a split, rename its folder"
_SHOWN = 10
"""Most names in a message."""


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
    """Which folders are the classes, in words."""
    left_out: Mapping[str, Sequence[str]]
    """Paths of the other files by reason."""
    notes: Sequence[str]
    """Warnings for the user."""


def split_in(name: str) -> str | None:
    """Return the split that `name` has as a word (`train` for `seg_train`), or None if it has none or several."""
    splits = {_SPLITS[word] for word in _words(name) if word in _SPLITS}
    return splits.pop() if len(splits) == 1 else None


def class_above(path: str, classes: Collection[str]) -> str | None:
    """Return the first folder of `path`, from the top, that is one of `classes`."""
    return next((name for folder in path.split("/")[:-1] if (name := normal(folder)) in classes), None)


def of_parquet(paths: Sequence[str]) -> Layout:
    """Read the split of each Parquet file from its folders and name; raise `ValueError` if one is missing or ambiguous.

    A split is a word in a folder (`train/`, `train.parquet/`, `split=train/`) or in a file's name (`train-00000`).
    """
    name_of = {path: _split_name(path) for path in paths}
    used, left_out_names, notes = _assign({name: split for name, split in name_of.values() if split})
    left_out: defaultdict[str, list[str]] = defaultdict(list)
    for path, (name, _) in name_of.items():
        if name not in used:
            left_out[left_out_names.get(name, "no folder or file name contains train or test")].append(path)
    splits = {path: used[name] for path, (name, _) in name_of.items() if name in used}
    return Layout(splits=splits, left_out=left_out, notes=notes)


def of_images(images: Sequence[str], others: Sequence[str], *, name: str) -> Layout:
    """Read splits and classes from the folders of `images`; raise `ValueError` if they are missing or ambiguous.

    Args:
        images: Paths of the image files.
        others: Paths of other files; folders, which may be empty, end in `/`.
        name: Name of the folder with all of them, for messages.
    """
    tables = sorted(path for path in others if path.lower().endswith(_TABLES))
    try:
        layout = _of_folders(images, _Folders(images, others), name=name)
    except ValueError as error:
        hint = f"; left out: {', '.join(tables[:_SHOWN])}: {_BY_FOLDERS}" if tables else ""
        raise ValueError(f"{error}{hint}") from None
    if tables and len({re.sub(r"\d+", "", folder) for folder in layout.classes}) == 1:
        raise ValueError(
            f"folders {', '.join(layout.classes[:_SHOWN])} differ only in their numbers, beside {tables[0]}: "
            f"{_BY_FOLDERS}, or move {tables[0]} elsewhere if these folders are the classes"
        )
    return layout


class _Folders:
    """Folders above the paths of a listing; each ends in `/`."""

    def __init__(self, images: Sequence[str], others: Sequence[str]) -> None:
        self._with_images = {_parent(path) for path in images}
        self._below: defaultdict[str, set[str]] = defaultdict(set)
        for folder in self._with_images | set(map(_parent, others)):
            above = ""
            for name in folder.split("/")[:-1]:
                self._below[above].add(name)
                above += f"{name}/"

    def below(self, folder: str) -> list[str]:
        """Return the sorted names of the folders directly below `folder`."""
        return sorted(self._below.get(folder, ()))

    def unwrapped(self, folder: str, *, stop: Callable[[str], object] = lambda name: False) -> str:
        """Descend from `folder` while it holds one folder with folders and without images; not into one of `stop`."""
        while len(names := self.below(folder)) == 1 and not stop(names[0]):
            inner = f"{folder}{names[0]}/"
            if inner in self._with_images or not self.below(inner):
                break
            folder = inner
        return folder


def _of_folders(images: Sequence[str], folders: _Folders, *, name: str) -> Layout:
    top = folders.unwrapped("", stop=split_in)
    split_of = {folder: split for folder in folders.below(top) if (split := split_in(folder))}
    if not _are_splits(split_of, folders, top):
        notes = [f"{folder} is read as a class, although its name contains {split_of[folder]}" for folder in split_of]
        return _of_classes(images, folders, {top: ""}, {}, where=f"{name}/{top}", notes=notes)
    try:
        used, reasons, notes = _assign(split_of)
    except ValueError as error:
        alone = f"{top}{next(iter(split_of))}/"
        only_train = set(split_of.values()) == {"train"} and folders.below(alone)
        split_it = f"; to take the test rows from the images of {alone}, name that folder" if only_train else ""
        raise ValueError(f"{error}{split_it}; {_RENAME}") from None
    train, test = (f"{top}{folder}/" for folder in used)
    train = folders.unwrapped(train)
    learned = set(map(normal, folders.below(train)))
    test = folders.unwrapped(test, stop=lambda name: normal(name) in learned)
    bases = {train: "train", test: "test"}
    reasons = {f"{top}{folder}/": reason for folder, reason in reasons.items()}
    return _of_classes(images, folders, bases, reasons, where=" and ".join(bases), notes=notes)


def _are_splits(split_of: Mapping[str, str], folders: _Folders, top: str) -> bool:
    """Return whether folders named like splits are splits, or may be; a class needs no folders below."""
    is_exact = any(folder.lower() in _SPLITS for folder in split_of)
    return is_exact or _are_complete(split_of.values()) or any(folders.below(f"{top}{folder}/") for folder in split_of)


def _of_classes(
    images: Sequence[str],
    folders: _Folders,
    bases: Mapping[str, str],
    reasons: Mapping[str, str],
    *,
    where: str,
    notes: Sequence[str],
) -> Layout:
    """Take the folders below `bases`, whose values are splits, as classes; check that nothing is ambiguous.

    `reasons` says by folder above the classes why an image there is left out.
    """
    splits: dict[str, str] = {}
    class_of: dict[str, str] = {}
    left_out: defaultdict[str, list[str]] = defaultdict(list)
    for path in images:
        base = next((base for base in bases if path.startswith(base)), None)
        inner, is_below, _ = path[len(base or "") :].partition("/")
        if base is not None and is_below:
            splits[path], class_of[path] = bases[base], normal(inner)
        else:
            reason = next((reason for folder, reason in reasons.items() if path.startswith(folder)), None)
            left_out[reason or "in no class folder"].append(path)
    inner_of = {f"{base}{name}/": folders.below(f"{base}{name}/") for base in bases for name in folders.below(base)}
    names = set(class_of.values())
    if empty := [folder for folder in inner_of if normal(folder.split("/")[-2]) not in names]:
        raise ValueError(
            f"class folder {empty[0]} has no images that can be read, or is a link, which is not followed; add images "
            "of the class, or move the folder elsewhere"
        )
    classes = _checked_classes(class_of, splits, bases, where)
    for folder, below in inner_of.items():
        _check_inside(folder, below, classes)
    for path, name in class_of.items():
        if (first := class_above(path, names)) != name:
            raise ValueError(f"{path}: {first}, above class folder {name}, is named like a class; rename it")
    common = sorted(set.intersection(*map(set, inner_of.values())))
    if len(common) > 1:
        shown, inner = (", ".join(names[:_SHOWN]) for names in (classes, common))
        notes = [
            *notes,
            f"classes {shown} all have folders {inner}; if those are the classes, make them the upper folders",
        ]
    notes = [*notes, *class_names.lookalikes(classes)]
    where = f"the folders below {where}"
    return Layout(splits=splits, class_of=class_of, classes=classes, where=where, left_out=left_out, notes=notes)


def _checked_classes(
    class_of: Mapping[str, str], splits: Mapping[str, str], bases: Mapping[str, str], where: str
) -> tuple[str, ...]:
    """Return the class names in order; raise `ValueError` if they cannot be learned."""
    names = {split: {class_of[path] for path in splits if splits[path] == split} for split in bases.values()}
    for base, split in bases.items():
        if not names[split] and split:
            unlabelled = f"; if its images have no labels, move {base} elsewhere" if split == "test" else ""
            raise ValueError(
                f"there are no class folders with images in {base}, read as split {split}{unlabelled}; {EXPECTED}; "
                f"{_RENAME}"
            )
        if not names[split]:
            raise ValueError(f"there are no class folders with images; {EXPECTED}")
    learned = next(iter(names.values()))
    if unlearned := sorted(set().union(*names.values()) - learned):
        raise ValueError(
            f"class {', '.join(unlearned[:_SHOWN])} has test images but no training images; add some, or remove those"
        )
    if len(learned) < 2:
        raise ValueError(
            f"there must be at least two classes below {where}, got {', '.join(learned)}; add a folder with images of "
            "another class, or name the folder that holds the class folders"
        )
    class_names.check_can_be_classes(learned)
    return tuple(class_names.in_order(learned))


def _check_inside(folder: str, below: Sequence[str], classes: Sequence[str]) -> None:
    """Raise `ValueError` if a class folder holds splits or several of the classes."""
    exact = [name for name in below if name.lower() in _SPLITS]
    if exact or _are_complete(map(split_in, below)):
        raise ValueError(f"{folder}{(exact or below)[0]}: train and test must be above the class folders")
    if len(both := [name for name in map(normal, below) if name in classes]) > 1:
        raise ValueError(
            f"class folder {folder} has folders named like the classes beside it ({', '.join(both[:_SHOWN])}); if it "
            "is a copy, move it elsewhere"
        )


def _split_name(path: str) -> tuple[str, str | None]:
    """Return what names the split of a Parquet file, such as `data/mnist train`, equal for all parts, and the split."""
    *above, file = [re.sub(r"\.parquet$", "", part, flags=re.IGNORECASE) for part in path.split("/")]
    parts = [_without_key(folder) for folder in above] + [file]
    splits = {split: depth for depth, part in reversed([*enumerate(parts)]) if (split := split_in(part))}
    if len(splits) > 1:
        raise ValueError(f"{path} names several splits ({', '.join(sorted(splits))}); rename a folder or the file")
    if not splits:
        return "", None
    ((split, depth),) = splits.items()
    words = _words(parts[depth])
    name = " ".join(words[: next(place for place, word in enumerate(words) if word in _SPLITS) + 1])
    return "/".join([*filter(None, parts[:depth]), name]), split


def _without_key(folder: str) -> str:
    """Return the value of `split=train`; empty for another partition, whose value is not a split's name."""
    key, has_key, value = folder.partition("=")
    return folder if not has_key else value if key == "split" else ""


def _assign(split_of: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str], list[str]]:
    """Return names used as train and test, reasons for which other names are left out, and warnings.

    Raises `ValueError` if a split is missing, or several names contain it.
    """
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name, split in sorted(split_of.items()):
        names[split].append(name)
    for split, its in names.items():
        if len(its) > 1:
            raise ValueError(
                f"{', '.join(its)} are all named like split {split}; keep one and move the others elsewhere, or put "
                f"all into one folder {split}"
            )
    used = {names[split][0]: split for split in ("train", "test") if split in names}
    notes = []
    if instead := [split for split in _INSTEAD_OF_TEST if split in names and "test" not in names]:
        used[names[instead[0]][0]] = "test"
        notes.append(f"there is no split test; {names[instead[0]][0]} is used instead")
    if missing := sorted({"train", "test"} - set(used.values())):
        read = "".join(f"; {name} was read as split {split}" for name, split in split_of.items())
        raise ValueError(f"there is no split {' and no split '.join(missing)}{read}; {EXPECTED}")
    unused = [name for name in split_of if name not in used]
    return used, {name: f"split {name}: validation rows are taken from train" for name in unused}, notes


def _are_complete(splits: Iterable[str | None]) -> bool:
    """Return whether training and test rows, or a substitute, are among `splits`."""
    splits = set(splits)
    return "train" in splits and not splits.isdisjoint(("test", *_INSTEAD_OF_TEST))


def _words(name: str) -> list[str]:
    """Return the words of `name` in lower case: `Training Set`, `training_set` and `TrainingSet` have the same.

    Digits are a word of their own.
    """
    return re.findall("[a-z]+|[0-9]+", re.sub("([a-z])([A-Z])", r"\1 \2", name).lower())


def _parent(path: str) -> str:
    """Return the folder of a file; a folder is its own."""
    return path[: path.rfind("/") + 1]
