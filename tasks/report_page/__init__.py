"""The report page, all results of one training run in a single self-contained HTML file; and the page of all runs."""

import dataclasses
import datetime
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.parse import quote

import jinja2
import numpy as np
from markupsafe import Markup, escape

from storage.admin import runs
from storage.decision import METRICS, Decision, metric_title
from storage.kinds import REPORT
from storage.manifest import JSON
from storage.statistics import CheckpointStatistics, Slice
from storage.uri import URI, Root
from tasks.jobs.preprocess.data_problems import DataProblem
from tasks.learning import slices
from tasks.learning.metrics import wilson
from tasks.report_page import next_steps, plots
from tasks.report_page.more_photos import MorePhotos

_MAX_CELLS = 20
"""Maximum number of classes of a confusion matrix, which fits on paper; of more, the frequent confusions are listed."""
_GOALS = (0.99, 0.98, 0.95, 0.9)
"""Shares of right predictions that the sentence about confidence may promise; the first that the test rows prove."""
_LEAST_ROWS = 100
"""Test rows that may prove it, at least."""
_CONFIDENCES = (0.0, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99)
"""Confidences in the table of coverage."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class LineageStep:
    """One step of the lineage, from the raw files, which have no URI, to the report."""

    title: str
    uri: URI | None = None
    link: str = ""
    """Address of its manifest relative to the page; empty if it is not below the same storage root."""
    facts: tuple[tuple[str, str], ...] = ()
    """Names and values: row counts, a file's SHA-256; a value may have several lines."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportData:
    """Content of the page of one training run, as plain values; equal values give equal pages."""

    recipe_name: str
    data_set: str
    sample_notice: str | None
    """Notice that the data set is only a bundled sample; None for the real data set."""
    decision: Decision
    """Whether the model was promoted, why, by which gate, and the metrics of the champion it was compared with."""
    evaluated: JSON
    """Content of the evaluation's files by name, as `tasks.evaluate` writes them: `metrics`, `per_class`, ..."""
    trained: CheckpointStatistics
    """Shown are the history, the best epoch and the seconds."""
    classes: tuple[str, ...]
    """In the order of the confusion matrix."""
    class_counts: Mapping[str, Mapping[str, int]]
    """Rows of each class, by split."""
    data_problems: tuple[DataProblem, ...]
    lineage: tuple[LineageStep, ...]
    """From the raw files to the report, in order."""
    parameters: JSON
    """All fields of the recipe, the number of workers and the resolved values."""
    command: str
    """Shell command that reproduces this model."""
    producer: dict[str, str | None]
    """Versions of the package and its libraries, and the git commit, where known."""
    mistakes: tuple[JSON, ...] = ()
    """Wrong predictions, the most confident first: `id`, `label`, `prediction`, `probability`, `name` (the file, or
    `test row 37` of downloaded data), and `image` (uint8, HWC, 1 or 3 channels)."""
    against: JSON | None = None
    """What is different from the champion before, from `tasks.comparing.diff`; None if there was none."""
    against_note: str = ""
    """Why it cannot be compared with the champion before."""
    near_duplicates: tuple[JSON, ...] = ()
    """`kind`, `rows` (a `Pair`) and the two `images` of pairs of rows, the worst first."""
    class_samples: Mapping[str, Sequence[np.ndarray]] = dataclasses.field(default_factory=dict)
    """Some training images of each class, or of some classes if there are many."""
    left_out: tuple[JSON, ...] = ()
    """Rows that were left out: `class` or None, `place`, `reason`, and `image` (None if unreadable)."""
    more_photos: MorePhotos | None = None
    """Of a probe."""


def render(data: ReportData) -> str:
    """Render the page as self-contained HTML; the same `data` gives the same bytes.

    Everything in `data` is escaped. Images with a side above 64 pixels are scaled down.
    """
    curves = [
        (title, Markup(plots.learning_curve(data.trained.history, quantity, best_epoch=data.trained.best_epoch)))
        for title, quantity in (("Loss", "loss"), ("Accuracy", "accuracy"))
    ]
    goal, chosen = chosen_confidence(data.evaluated["coverage"])
    pairs = _confused_pairs(data)
    steps = next_steps.find(
        train_counts=data.class_counts.get("train", {}), confused=pairs, more_photos=data.more_photos
    )
    template = environment().get_template("report.html.j2")
    return template.render(
        data=data,
        curves=curves,
        has_groups=any(row.backbone_learning_rate != row.learning_rate for row in data.trained.history),
        reliability=Markup(plots.reliability(data.evaluated["calibration"])),
        goal=goal,
        chosen=chosen,
        covered=list(_covered(data.evaluated["coverage"], chosen)),
        metric=metric_title(METRICS[data.decision.gate["metric"]]),
        has_matrix=len(data.classes) <= _MAX_CELLS,
        pairs=pairs[:10],
        next_steps=list(steps),
        comparison=list(_comparison(data)),
        interval=accuracy_interval,
        largest_class=max(
            1, *(sum(split.get(name, 0) for split in data.class_counts.values()) for name in data.classes)
        ),
        worse_slices=slices.worse(Slice(**each) for each in data.evaluated["slices"]["slices"]),
        longest_word=min(
            24, max((len(word) for name in data.classes for word in re.split(r"[\s_/-]", name)), default=0)
        ),
    )


def render_runs(root: Root, *, links_to: str) -> bytes:
    """Render the page as self-contained HTML without scripts; the same storage gives the same bytes.

    `links_to` is the address of the root for the links to reports, with a slash at the end; not quoted.
    """
    rows, damaged = runs.of(root)
    for row in rows:
        row["link"] = quote(f"{links_to}{REPORT.folder}/{row['uri'].name}/index.html", safe="/:")
        row |= {"changed": runs.changes_as_text(row["changes"]), "mark": runs.mark(row)}
    template = environment().get_template("runs.html.j2")
    return template.render(root_name=root.name, rows=rows[::-1], damaged=damaged).encode()


def environment(*folders: Path) -> jinja2.Environment:
    """Return the environment of templates in `folders` and of the report's own; it escapes all values."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader([*folders, Path(__file__).parent]),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": share, "number": number, "moment": moment, "png": plots.png}
    environment.filters |= {"breakable": _breakable, "percent": percent, "describe": slices.describe}
    return environment


def _breakable(text: str) -> Markup:
    """Escape `text` and let lines break at underscores and slashes, so that file names need not break elsewhere."""
    return Markup(re.sub(r"(?<=[_/])", "<wbr>", escape(text)))


def number(value: float | None, digits: int = 4) -> str:
    """Format a number as the terminal does: integers with commas between thousands, others with `digits` decimals."""
    if value is None or not math.isfinite(value):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def moment(time: datetime.datetime | None) -> str:
    """Format a time in UTC to the minute, for readers in any time zone: `2026-11-23 14:05 UTC`."""
    return time.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC") if time else ""


def share(value: float | None, whole: int = 1, digits: int = 4) -> str:
    """Format a share of `whole`: 0.9931 of 1 as `0.9931`, of 100 as `99.31`; never round up to the whole."""
    if value is not None and value < 1 and round(whole * value, digits) == whole:
        return f">{whole - 10**-digits:.{digits}f}"
    return number(whole * value if value is not None else None, digits)


def percent(part: float, whole: float) -> str:
    """Format a share in percent with at most one decimal, rounded down: 0.9987 of 1 as `99.8%`."""
    return f"{math.floor(1000 * part / whole + 1e-9) / 10:g}%" if whole else "–"


def chosen_confidence(coverage: Sequence[JSON]) -> tuple[float, JSON | None]:
    """Return the highest of some goals, and the lowest confidence at and above which at least that share is right.

    The lower end of the 95% interval counts, as other images are not right as often as those by which a confidence was
    chosen. None if too few rows prove any goal.
    """
    for goal in _GOALS:
        for row in coverage:
            if row["rows"] >= _LEAST_ROWS and wilson(row["right"] / row["rows"], row["rows"])[0] >= goal:
                return goal, row
    return 0.0, None


def accuracy_interval(metrics: Mapping[str, float]) -> str:
    """Format the 95% interval of the test accuracy: `0.9379 to 1.0000`."""
    low, high = wilson(metrics["test_accuracy"], int(metrics["num_rows"]))
    return f"{abs(low):.4f} to {high:.4f}"  # a share of 0 gives -1e-17


def _covered(coverage: Sequence[JSON], chosen: JSON | None) -> Iterator[JSON]:
    """Yield the rows of the table of confidences: some round ones and `chosen`, unless they cover the same rows."""
    rows = None
    for row in coverage:
        if (row is chosen or row["confidence"] in _CONFIDENCES) and row["rows"] not in (0, rows):
            rows = row["rows"]
            yield row


def _confused_pairs(data: ReportData) -> list[tuple[int, float, str, str]]:
    """List count, share of the true class, true and predicted class of all confusions, most frequent first."""
    pairs = [
        (count, count / sum(counts), data.classes[row], data.classes[column])
        for row, counts in enumerate(data.evaluated["confusion"])
        for column, count in enumerate(counts)
        if count and row != column
    ]
    return sorted(pairs, key=lambda pair: -pair[0])


def _comparison(data: ReportData) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, challenger's value, champion's value and difference of each metric."""
    for name, value in data.evaluated["metrics"].items():
        champion = data.decision.metrics.get("champion", {}).get(name)
        show = share if name in METRICS.values() else number
        if name != "num_rows":
            difference = f"{value - champion:+.4f}".replace("-", "\u2212") if champion is not None else ""
            yield metric_title(name), show(value), show(champion), difference
