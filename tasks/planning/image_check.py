"""Check of the user's images before a run: decode as many as a few seconds allow, and refuse what the run would."""

import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from storage import files, manifest, process
from storage.terminal import first
from storage.uri import URI
from tasks.images import parquet_files, user_files, user_images
from tasks.images.user_images import UserImages
from tasks.jobs.preprocess import checks
from tasks.planning.plan import Plan

_LIMIT_S = 10.0
_THREADS = 4
_AT_ONCE = 64
_SHOWN = 5

Row = tuple[str, int | None, URI | bytes | None]
"""Name of an image; the class that it is a training row of, None if unknown; its file, or what Parquet has of it."""


def check_images(plan: Plan, *, limit_s: float = _LIMIT_S) -> str:
    """Decode the user's images for `limit_s` seconds, small classes first; say how many, and which cannot be read.

    Raises `ValueError` for more unreadable images than the run may leave out, or a class without readable ones.
    """
    stage = plan.ingest
    assert stage and stage.listing
    data = user_images.read(stage.listing)
    if manifest.is_committed(stage.target) or (data.uri.is_s3 and data.kind == "parquet"):
        return "decoded by the run, or by an earlier one"

    def checked(row: Row) -> tuple[str, int | None, str]:
        name, label, place = row
        return name, label, user_files.decoded(files.read(place) if isinstance(place, URI) else place, stage)[1]

    learned = Counter(file.label for file in data.files if file.split != "test")
    if data.kind == "parquet":
        opened = {file.path: parquet_files.opened(Path(data.uri, file.path)) for file in data.files}
        rows, total = _parquet_rows(opened), sum(source.file.metadata.num_rows for source in opened.values())
    else:
        rows, total = _files(data, learned), len(data.files)
    started, num_decoded = time.monotonic(), 0
    problems: list[str] = []
    for name, label, problem in process.in_threads(checked, rows, threads=_THREADS):
        num_decoded += 1
        problems += [f"{name} ({problem})"] if problem else []
        learned[label] -= bool(problem)
        if time.monotonic() - started > limit_s:
            break
    reasons = Counter({checks.UNREADABLE: len(problems)})
    checks.check_share(problems, reasons, total=total, limit=plan.recipe.split.max_quarantined)
    checks.check_learned([name for label, name in enumerate(data.classes) if not learned[label]])
    left_out = f"; {len(problems):,} unreadable: {first(problems, _SHOWN)}" if problems else ""
    return f"{num_decoded - len(problems):,} of {total:,} images decoded{left_out}"


def _files(data: UserImages, learned: Counter[int | None]) -> Iterator[Row]:
    for file in sorted(data.files, key=lambda file: (learned[file.label], file.digest)):
        yield file.path, None if file.split == "test" else file.label, data.uri.child(file.path)


def _parquet_rows(opened: dict[str, parquet_files.Opened]) -> Iterator[Row]:
    for path, source in opened.items():
        num_rows = source.file.metadata.num_rows
        bounds = [(start, min(start + _AT_ONCE, num_rows)) for start in range(0, num_rows, _AT_ONCE)]
        for (start, _), table in zip(bounds, parquet_files.ranges(source, bounds), strict=True):
            for number, row in enumerate(table["image"].to_pylist(), start):
                yield f"{path} row {number}", None, row["bytes"] if isinstance(row, dict) else row
