"""Test split for class folders without splits: a file's content decides, so that it never changes its split."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from tasks.images.listing import UserFile


def with_splits(listed: Sequence[UserFile], *, fraction: float, sha256: Mapping[str, str]) -> list[UserFile]:
    """Set each file's split by its content alone; other files matter only if a class would be left without training.

    A file is a test row if the first 64 bits of its SHA-256, divided by 2**64, are below `fraction`. Its name, a seed
    or the size to which images are scaled have no influence. A larger fraction keeps all test rows of a smaller one.
    The file of a class with the highest SHA-256 is never a test row.

    `sha256` has the hexadecimal SHA-256 by path of the files whose entry in `listed` has none. The result is sorted by
    split and path. Raises `ValueError` if no file became a test row.
    """
    bound = int(fraction * 2**64)
    digests = [sha256.get(file.path) or file.digest.removeprefix("sha256:") for file in listed]
    highest = {file.label: digest for digest, file in sorted(zip(digests, listed, strict=True))}
    tested = {digest for digest in digests if int(digest[:16], 16) < bound} - set(highest.values())
    if not tested:
        raise ValueError(
            f"--data: test_fraction={fraction} selects no test rows from {len(listed)} images; add images, change "
            "test_fraction, or create folders train/<class> and test/<class>"
        )
    splits = ("test" if digest in tested else "train" for digest in digests)
    placed = (file._replace(split=split) for file, split in zip(listed, splits, strict=True))
    return sorted(placed, key=lambda file: (file.split, file.path))


def of_groups(sha256: Mapping[str, str], groups: Mapping[str, int]) -> dict[str, str]:
    """Return for each path in `groups` the SHA-256 of one image of its group: the one that ends lowest.

    The end, since the beginning decides the split: the lowest beginning would make large groups test rows.
    """
    members = defaultdict[int, list[str]](list)
    for path, group in groups.items():
        members[group].append(sha256[path][::-1])
    return {path: min(members[group])[::-1] for path, group in groups.items()}
