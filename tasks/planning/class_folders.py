"""Layout of image files: which folders are splits, and which are classes; computed from paths alone."""

import dataclasses
import itertools
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from tasks.jobs.ingest import class_names
from tasks.planning import split_names
from tasks.planning.split_names import LAYOUT

_SHOWN = 10
"""Most names in a message."""
_NO_CLASS = "in no class folder"
_NO_SPLIT = "no folder or file name contains train or test"
_RENAME = "if a class is named like a split, rename its folder, or put all class folders below train/ and test/"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Layout:
    """What the paths mean."""

    splits: Mapping[str, str]
    """Split of each image that is used: `train`, `test`, or empty if its content decides."""
    classes: tuple[str, ...]
    """Names of the classes in the order of their labels."""
    where: str
    """Which folders are the classes, in words."""
    skipped: Mapping[str, Sequence[str]]
    """Paths of the other images by reason."""
    notes: Sequence[str]
    """Warnings for the user."""


@dataclasses.dataclass(frozen=True)
class _Paths:
    """The listing: all folders end in `/`."""

    images: Sequence[str]
    others: Sequence[str]
    folders: frozenset[str]

    def below(self, folder: str) -> list[str]:
        """Return the sorted names of the folders directly below `folder`."""
        inner = (path[len(folder) :] for path in self.folders if path.startswith(folder) and path != folder)
        return sorted({path.split("/")[0] for path in inner})

    def unwrapped(self, folder: str, *, stop_at: Collection[str] = (), is_root: bool = False) -> str:
        """Descend from `folder` while it has only one folder, which has no images of its own but folders."""
        with_images = {_parent(path) for path in self.images}
        while len(names := self.below(folder)) == 1:
            inner = f"{folder}{names[0]}/"
            deeper = self.below(inner)
            is_split = is_root and split_names.named(names[0]) and not split_names.are_complete(deeper)
            if not deeper or is_split or inner in with_images or class_name(names[0]) in stop_at:
                break
            folder = inner
        return folder


def class_name(folder: str) -> str:
    """Return the class of a folder: macOS decomposes accents in names, other systems do not, all give one class."""
    return unicodedata.normalize("NFC", folder)


def class_of(path: str, classes: Collection[str]) -> str | None:
    """Return the first folder of `path`, from the top, that is one of `classes`.

    A folder named like a split is the split, not the class, if the next folder is a class, too.
    """
    folders = [class_name(folder) for folder in path.split("/")[:-1]]
    for folder, below in itertools.pairwise([*folders, ""]):
        if folder in classes and not (split_names.named(folder) and below in classes):
            return folder
    return None


def layout(images: Sequence[str], others: Sequence[str], *, name: str) -> Layout:
    """Read splits and classes from the folders of `images`; raise `ValueError` if they are missing or ambiguous.

    Args:
        images: Paths of the image files.
        others: Paths of other files; folders, which may be empty, end in `/`.
        name: Name of the folder with all of them, for messages.
    """
    paths = _Paths(images, others, frozenset(_folders([*images, *others])))
    top = paths.unwrapped("", is_root=True)
    names = [folder for folder in paths.below(top) if split_names.named(folder)]
    if not _are_splits(names, paths, top):
        notes = [f"{one} is read as a class, although its name contains {split_names.named(one)}" for one in names]
        return _read(paths, [("", top)], {}, where=f"{name}/{top}", notes=notes)
    try:
        assigned = split_names.assign(names)
    except ValueError as error:
        inner = f"{top}{names[0]}/"
        is_alone = len(names) == 1 and split_names.named(names[0]) == "train" and paths.below(inner)
        split_it = f"; to take the test rows from the images of {inner}, name that folder" if is_alone else ""
        raise ValueError(f"{error}{split_it}; {_RENAME}") from None
    bases: list[tuple[str, str]] = []
    for folder, split in sorted(assigned.splits.items(), key=lambda item: item[1], reverse=True):  # train first
        classes = {class_name(inner) for _, base in bases for inner in paths.below(base)}
        bases.append((split, paths.unwrapped(f"{top}{folder}/", stop_at=classes)))
    reasons = assigned.reasons | dict.fromkeys(assigned.splits, _NO_CLASS)
    reasons = {f"{top}{folder}/": reason for folder, reason in reasons.items()}
    return _read(paths, bases, reasons, where=" and ".join(base for _, base in bases), notes=assigned.notes)


def _are_splits(names: Sequence[str], paths: _Paths, top: str) -> bool:
    """Return whether the folders `names`, named like splits, are splits, or may be; a class needs no folders below."""
    is_clear = any(map(split_names.is_exact, names)) or split_names.are_complete(names)
    return is_clear or any(paths.below(f"{top}{folder}/") for folder in names)


def _read(
    paths: _Paths,
    bases: Sequence[tuple[str, str]],
    reasons: Mapping[str, str],
    *,
    where: str,
    notes: Sequence[str],
) -> Layout:
    """Take the folders below `bases`, pairs of split and folder, as classes.

    `reasons` says by folder above the classes why an image there is skipped.
    """
    splits: dict[str, str] = {}
    folder_of: dict[str, str] = {}
    skipped: defaultdict[str, list[str]] = defaultdict(list)
    for path in paths.images:
        split, base = next((one for one in bases if path.startswith(one[1])), ("", path))
        inner, is_deeper, _ = path[len(base) :].partition("/")
        if is_deeper:
            splits[path], folder_of[path] = split, class_name(inner)
        else:
            reason = next((reason for folder, reason in reasons.items() if path.startswith(folder)), None)
            skipped[reason or (_NO_SPLIT if reasons else _NO_CLASS)].append(path)
    _check_not_empty(paths, bases, set(folder_of.values()))
    names = {split: {folder_of[path] for path in splits if splits[path] == split} for split, _ in bases}
    classes = _checked(names, bases, where)
    _check_no_splits_or_copies(paths, bases, classes)
    for path, folder in folder_of.items():
        if (first := class_of(path, classes)) != folder:
            raise ValueError(f"{path}: {first}, above class folder {folder}, is named like a class; rename it")
    notes = [*notes, *_same_folders_below(paths, bases, classes), *class_names.lookalikes(classes)]
    return Layout(splits=splits, classes=classes, where=f"the folders below {where}", skipped=skipped, notes=notes)


def _check_not_empty(paths: _Paths, bases: Sequence[tuple[str, str]], with_images: Collection[str]) -> None:
    """Raise `ValueError` for the first class folder without images in any split."""
    for folder in (f"{base}{name}/" for _, base in bases for name in paths.below(base)):
        if class_name(folder.split("/")[-2]) in with_images:
            continue
        suffixes = Counter(_suffix(path) for path in paths.others if path.startswith(folder) and path[-1] != "/")
        types = ", ".join(f"{number:,} {suffix}" for suffix, number in suffixes.most_common(_SHOWN))
        what = (
            f"has no images that can be read, only {types}" if types else "is empty, or a link, which is not followed"
        )
        raise ValueError(f"class folder {folder} {what}; add images of the class, or move the folder elsewhere")


def _checked(names: Mapping[str, set[str]], bases: Sequence[tuple[str, str]], where: str) -> tuple[str, ...]:
    """Return the class names in order, given those by split; raise `ValueError` if they cannot be learned."""
    for split, its in names.items():
        if not its and split:
            read = ", ".join(base for its_split, base in bases if its_split == split)
            unlabelled = f"; if its images have no labels, move {read} elsewhere" if split == "test" else ""
            raise ValueError(
                f"there are no class folders with images in {read}, read as split {split}{unlabelled}; {LAYOUT}; "
                f"{_RENAME}"
            )
        if not its:
            raise ValueError(f"there are no class folders with images; {LAYOUT}")
    learned = names.get("train") or names[""]
    if unlearned := sorted(set().union(*names.values()) - learned):
        raise ValueError(
            f"class {', '.join(unlearned[:_SHOWN])} has test images but no training images; add training images, or "
            "remove its test images"
        )
    if len(learned) < 2:
        raise ValueError(
            f"there must be at least two classes below {where}, got {', '.join(learned)}; add a folder with images of "
            "another class, or name the folder that holds the class folders"
        )
    return tuple(class_names.in_order(learned))


def _inner(paths: _Paths, bases: Sequence[tuple[str, str]]) -> Iterator[tuple[str, set[str]]]:
    """Yield each class folder and the names of the folders below it."""
    for _, base in bases:
        for name in paths.below(base):
            yield f"{base}{name}/", set(map(class_name, paths.below(f"{base}{name}/")))


def _check_no_splits_or_copies(paths: _Paths, bases: Sequence[tuple[str, str]], classes: Sequence[str]) -> None:
    """Raise `ValueError` for split folders below classes, or for a copy of the class folders among them."""
    for folder, inner in _inner(paths, bases):
        splits = sorted(name for name in inner if split_names.is_exact(name))
        if splits or split_names.are_complete(inner):
            raise ValueError(f"{folder}{min(splits or inner)}: train and test must be above the class folders")
        if len(both := sorted(inner.intersection(classes))) > 1:
            raise ValueError(
                f"class folder {folder} has folders named like the classes beside it ({', '.join(both[:_SHOWN])}); if "
                "it is a copy, move it elsewhere"
            )


def _same_folders_below(paths: _Paths, bases: Sequence[tuple[str, str]], classes: Sequence[str]) -> Iterator[str]:
    """Warn if all class folders have several folders in common, which may then be the classes."""
    common = set.intersection(*(names for _, names in _inner(paths, bases)))
    if len(common) > 1:
        names = [", ".join(some[:_SHOWN]) for some in (classes, sorted(common))]
        yield f"classes {names[0]} all have folders {names[1]}; if those are the classes, make them the upper folders"


def _folders(paths: Iterable[str]) -> Iterator[str]:
    """Yield every folder above a path, and the paths that are folders."""
    for path in set(map(_parent, paths)):
        parts = path.split("/")[:-1]
        yield from ("/".join(parts[:depth]) + "/" for depth in range(1, len(parts) + 1))


def _parent(path: str) -> str:
    """Return the folder of a file; a folder is its own."""
    return path[: path.rfind("/") + 1]


def _suffix(path: str) -> str:
    name = path.rpartition("/")[2].lower()
    return f".{name.rpartition('.')[2]}" if "." in name else "without a suffix"
