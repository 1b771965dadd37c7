"""Kinds of files by their names: images and Parquet that are read, images that are not, and shards of a set."""

import itertools
import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

_JPEG = (".jpg", ".jpeg", ".jpe", ".jfif", ".jif")
IMAGES = (*_JPEG, ".png", ".apng", ".bmp", ".gif", ".webp", ".avif", ".tif", ".tiff", ".ppm", ".pgm", ".pbm", ".pnm")
"""Endings of image files that are read."""
PARQUET = ".parquet"
_CAMERA_RAW = (".dng", ".cr2", ".cr3", ".nef", ".arw", ".raf", ".orf", ".rw2")
_UNREAD = (*_CAMERA_RAW, ".heic", ".heif", ".hif", ".jxl", ".jp2", ".psd", ".tga", ".svg", ".eps")
"""Endings of images that are not read: a user who has them expects that they are."""
UNREAD = "images in a format that is not read; convert them to JPEG or PNG"
"""Reason for which such files are skipped."""
_SHARD = re.compile(r"(?P<name>.*)[-_.](?P<number>\d+)[-_]of[-_](?P<total>\d+)(?!\d)[^/]*\.parquet", re.IGNORECASE)
_SHOWN = 5


def why_not_read(path: str) -> str:
    """Return the reason for which a file that is neither an image nor Parquet is skipped."""
    return UNREAD if path.lower().endswith(_UNREAD) else "not images or Parquet, by their file names"


def describe_unread(skipped: Mapping[str, Sequence[str]], *, num_read: int) -> list[str]:
    """Return a warning with the share of images that are not read; empty if there are none."""
    if not (unread := skipped.get(UNREAD)):
        return []
    endings = Counter(os.path.splitext(path)[1].lower() for path in unread)
    total = len(unread) + num_read
    return [
        f"WARNING: {len(unread):,} of {total:,} images ({len(unread) / total:.0%}) are left out, because "
        f"{', '.join(sorted(endings))} cannot be read; convert them to JPEG or PNG"
    ]


def check_shards(paths: Iterable[str], *, option: str) -> None:
    """Raise `ValueError` naming the missing Parquet files of a numbered set, such as `train-00001-of-00002.parquet`."""
    numbers: dict[tuple[str, int], dict[int, str]] = defaultdict(dict)
    for path in paths:
        if shard := _SHARD.fullmatch(path):
            numbers[shard["name"], int(shard["total"])][int(shard["number"])] = path
    for (_, total), present in sorted(numbers.items()):
        first = 1 if 0 not in present and total in present else 0
        lacking = total - sum(first <= number < first + total for number in present)
        missing = (number for number in range(first, first + total) if number not in present)
        if lacking:
            example = next(iter(present.values()))
            named = ", ".join(_renumbered(example, number) for number in itertools.islice(missing, _SHOWN))
            raise ValueError(
                f"{option}: {lacking:,} of {total:,} shards are missing: {named}{', ...' * (lacking > _SHOWN)}; add "
                f"them, or rename the others if {example} is complete without them"
            )


def _renumbered(path: str, number: int) -> str:
    shard = _SHARD.fullmatch(path)
    assert shard is not None
    digits = shard.end("number") - shard.start("number")
    return f"{path[: shard.start('number')]}{number:0{digits}}{path[shard.end('number') :]}"
