"""Layout of Parquet files: the split that each one's folders or name say; computed from paths alone."""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

from tasks.planning import split_names

_SHOWN = 5
_TABLE_LOG = re.compile(r"(?:.*/)?(?:_delta_log/|\.hoodie/|metadata/[^/]*\.metadata\.json$)")
"""Paths of the logs of Delta Lake, Hudi and Iceberg tables."""


def check_no_table(paths: Iterable[str]) -> None:
    """Raise `ValueError` if one of the `paths` beside the Parquet files is the log of a table with deleted rows."""
    if logs := sorted(filter(_TABLE_LOG.match, paths)):
        raise ValueError(
            f"{logs[0]} is of a Delta Lake, Hudi or Iceberg table, among whose files are deleted and replaced rows; "
            "export the current rows as Parquet files of their own"
        )


def splits(paths: Sequence[str]) -> tuple[dict[str, str], dict[str, list[str]], list[str]]:
    """Return the split of each path that is used, the other paths by reason, and warnings for the user.

    A split is a folder (`train/`, `train.parquet/`, `split=train/`), the beginning of a file's name (`train-00000`), or
    a word in either (`mnist_train`). Raises `ValueError` if a split is missing, or a path has two.
    """
    names = {path: split_name(path) for path in paths}
    assigned = split_names.assign({name for name in names.values() if name})
    skipped: defaultdict[str, list[str]] = defaultdict(list)
    for path, name in names.items():
        if name not in assigned.splits:
            skipped[assigned.reasons[name] if name else "no folder or file name contains train or test"].append(path)
    used = {path: assigned.splits[name] for path, name in names.items() if name in assigned.splits}
    return used, skipped, [*assigned.notes, *_several_sets(used)]


def split_name(path: str) -> str:
    """Return the name of the split of `path`, such as `train` or `mnist train`, equal for all parts; empty if none."""
    *folders, file = [re.sub(r"\.parquet$", "", part, flags=re.IGNORECASE) for part in path.split("/")]
    parts = [name for folder in folders if (name := _without_key(folder))]
    names = [name.lower() for name in [*parts, re.split(r"[-_.]", file)[0]]]
    exact = list(dict.fromkeys(filter(split_names.is_exact, names)))
    if len({split_names.named(name) for name in exact}) > 1:
        raise ValueError(f"{path} names several splits ({', '.join(exact)}); rename a folder or the file")
    if exact:
        return exact[0]
    for part in [*parts, file]:
        if split_names.named(part):
            words = split_names.words(part)
            return " ".join(words[: next(place for place, word in enumerate(words) if split_names.is_exact(word)) + 1])
    return ""


def _several_sets(used: Mapping[str, str]) -> Iterator[str]:
    """Warn if `train` is in several folders that are no partitions: they may be versions of the same images."""
    above = sorted({_above_split(path) for path, split in used.items() if split == "train"})
    if len(above) > 1 and not any("=" in folder for folder in above):
        folders = ", ".join(folder or "the folder itself" for folder in above[:_SHOWN])
        yield f"train is taken from {folders} together; if they hold the same images, name one of them as --data"


def _above_split(path: str) -> str:
    """Return the folders above the part of `path` that names its split."""
    parts = path.split("/")
    depth = next(depth for depth in range(len(parts)) if split_name("/".join(parts[: depth + 1])))
    return "/".join(parts[:depth])


def _without_key(folder: str) -> str:
    """Return the value of `split=train`; empty for another partition, whose value is not a split's name."""
    key, has_key, value = folder.partition("=")
    if not has_key:
        return folder
    return value if key == "split" else ""
