"""What deserves attention in the data of a run: rows, files and classes that make its result worse or less certain."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeVar

from storage.kinds import EMBEDDINGS, PREPARED, RAW
from storage.manifest import Manifest
from storage.statistics import PairKind, PreparedStatistics
from storage.terminal import count
from tasks.jobs import events
from tasks.learning.epoch_metrics import IMBALANCE
from tasks.learning.images import MOST_COMPARED

_CLASSES_NAMED = 5
_LEAK: PairKind = "across train and test"
_NEAR_DUPLICATES: dict[PairKind, str] = {
    _LEAK: ": the test accuracy is too good",
    "across classes": ": one of the labels may be wrong",
    "within a class": "",
}
"""What each kind of pairs, from the worst on, means for the run; nothing: it need not be in the banner."""
_PAIRS = 20
_SHOWN = 3
"""Most details in a line of the log."""

HARMLESS = ("hidden", "system files")
"""Starts of the reasons for which files are left out that nobody misses."""
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DataProblem:
    """One problem of the data, for the job's log, the report, its banner, and the summary in the terminal."""

    summary: str
    """One sentence without full stop."""
    details: tuple[str, ...] = ()
    """Files, rows or reasons; the last is `...` if there are more."""
    is_minor: bool = False
    """Whether only the section Data shows it, as nothing needs to be done, for example about system files."""
    is_listed: bool = False
    """Whether the log of `ingest` has listed it already."""

    def __str__(self) -> str:
        named = ", ".join(_named(self.details[:_SHOWN], len(self.details)))
        return f"{self.summary}: {named}" if named else self.summary


def find_data_problems(raw: Manifest, prepared: Manifest, embedded: Manifest | None) -> list[DataProblem]:
    """List the problems that the manifests of a run record; the same results give the same list."""
    statistics = prepared.statistics_of(PREPARED)
    return [
        *_left_out(raw, statistics),
        *_copies(statistics),
        *of_near_duplicates(raw, embedded),
        *_class_balance(statistics),
    ]


def warn(problems: Iterable[DataProblem]) -> None:
    """Write those that deserve attention now to the log of a job."""
    for problem in problems:
        if not (problem.is_minor or problem.is_listed):
            events.write_line(f"WARNING: {problem}")


def by_split(values: Mapping[str, _T]) -> dict[str, _T]:
    """Return the entries of `values` in the order train, validation, test: manifests sort them by name."""
    return {split: values[split] for split in ("train", "validation", "test") if split in values}


def _left_out(raw: Manifest, prepared: PreparedStatistics) -> Iterator[DataProblem]:
    for files in raw.statistics_of(RAW).left_out:
        summary = f"{count(files.count, 'file')} left out ({files.reason})"
        is_minor, details = files.reason.startswith(HARMLESS), _named(files.first, files.count)
        yield DataProblem(summary=summary, details=details, is_minor=is_minor, is_listed=True)
    if reasons := prepared.quarantined:
        why = ", ".join(f"{reason}: {rows:,}" for reason, rows in reasons.items())
        of_all = f" of {raw.rows:,}" if raw.rows else ""
        summary = f"{sum(reasons.values()):,}{of_all} rows excluded ({why})"
        yield DataProblem(summary=summary, details=prepared.quarantined_files)


def _copies(prepared: PreparedStatistics) -> Iterator[DataProblem]:
    images = prepared.images_in_two_classes
    if images.count:
        summary = (
            f"{count(images.count, 'image')} in more than one class, on {images.rows:,} rows: every model is "
            "wrong about some of them"
        )
        yield DataProblem(summary=summary, details=_named(images.named, images.count))
    if (rows := prepared.test_rows_in_train).count:
        summary = f"{count(rows.count, 'test row')} also in train or validation: the test accuracy is too good"
        yield DataProblem(summary=summary, details=_named([f"id {id_}" for id_ in rows.ids], rows.count))


def of_near_duplicates(raw: Manifest, embedded: Manifest | None) -> Iterator[DataProblem]:
    """Yield a problem for each kind of pairs; one if nobody looked for pairs among the user's images."""
    near = embedded.statistics_of(EMBEDDINGS).near_duplicates if embedded else None
    if near is None:
        if "listing" in raw.parameters:
            why = f"more than {MOST_COMPARED:,} images" if embedded else "there are no embeddings"
            yield DataProblem(summary=f"no search for near duplicates: {why}", is_minor=True)
        return
    for kind, consequence in _NEAR_DUPLICATES.items():
        if (pairs := near[kind]).count:
            summary = f"{count(pairs.count, 'pair')} of near duplicates {kind}{consequence}"
            if kind == _LEAK and "test_fraction" in raw.parameters:
                summary += "; --set split.group=near-duplicates keeps them on one side"
            worst = [f"{pair.first.place} ~ {pair.second.place}" for pair in pairs.worst[:_PAIRS]]
            details = _named(worst, pairs.count)
            yield DataProblem(summary=summary, details=details, is_minor=not consequence)


def _class_balance(prepared: PreparedStatistics) -> Iterator[DataProblem]:
    counts = prepared.class_counts
    for split in ("validation", "test"):
        if missing := [name for name, rows in counts.get(split, {}).items() if not rows]:
            shown = ", ".join(_named(missing[:_CLASSES_NAMED], len(missing)))
            yield DataProblem(summary=f"classes without {split} rows: {shown}")
    train = sorted((rows, name) for name, rows in counts.get("train", {}).items())
    if train and train[-1][0] >= IMBALANCE * train[0][0]:
        (fewest, smallest), (most, largest) = train[0], train[-1]
        rows = f"{most:,} training rows of {largest}, {fewest:,} of {smallest}"
        yield DataProblem(summary=f"unbalanced classes: {rows}; unless class_weights=none, they count the same")


def _named(names: Sequence[str], total: int) -> tuple[str, ...]:
    return (*names, *["..."] * (total > len(names)))
