"""Layout of Parquet files: the split that each one's folders or name say; computed from paths alone."""

import re
from collections import defaultdict
from collections.abc import Sequence

from tasks.planning import split_names


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
    return used, skipped, assigned.notes


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


def _without_key(folder: str) -> str:
    """Return the value of `split=train`; empty for another partition, whose value is not a split's name."""
    key, has_key, value = folder.partition("=")
    if not has_key:
        return folder
    return value if key == "split" else ""
