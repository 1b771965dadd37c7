"""Pages for people: everything about one training run in a single HTML file that needs nothing else."""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
from markupsafe import Markup

from tasks.learning.epoch import wait_hints
from tasks.pages import lineage, plots
from tasks.pages.lineage import LineageStep

_MAX_CELLS = 20
"""Classes up to which the confusion matrix is a table of numbers, as many as fit on paper; above it is a picture."""
_NUM_PAIRS = 10
"""Most frequent confusions that are listed."""
_LEVELS = (0.0, 0.003, 0.01, 0.03, 0.1, 0.3)
"""Shares of a row above which a cell of the confusion matrix has the next stronger colour, off the diagonal."""
_DIAGONAL_LEVELS = (0.0, 0.5, 0.8, 0.9, 0.95, 0.98)
"""The same for the share of a class that is predicted right."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Picture:
    """One image of the test split and what the model made of it."""

    image: np.ndarray
    """uint8, (height, width, channels), with 1 or 3 channels."""
    label: str
    """Name of the true class."""
    prediction: str
    """Name of the predicted class."""
    probability: float
    """Of the predicted class, 0 to 1."""
    id: int
    """Of its row: the position in the source split."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReportData:
    """Everything that the page of one training run shows, as plain values; equal values give equal pages."""

    recipe_name: str
    """Name of the recipe."""
    data_set: str
    """Name of the data set."""
    sample_notice: str | None
    """What the reader must know when the data set is a bundled sample, none when it is the real one."""
    promoted: bool
    """Whether the gate put this model in charge."""
    reason: str
    """Why, in one sentence."""
    metrics: dict[str, float]
    """On the test split: at least `test_accuracy`, `test_loss`, `expected_calibration_error` and `num_rows`."""
    history: list[dict[str, float]]
    """Per epoch: `epoch`, `step`, `train_` and `validation_` `loss` and `accuracy`, `learning_rate`; where they were
    measured `seconds`, `data_wait_s`, `checkpoint_wait_s`."""
    best_epoch: int
    """The epoch, from 1, whose weights were kept."""
    training_seconds: float
    """Time taken by the attempt that finished the training."""
    classes: tuple[str, ...]
    """Names of the classes, in the order of `confusion`."""
    per_class: list[dict[str, Any]]
    """Per class: `class_name`, `precision`, `recall`, `f1`, `support` (test rows)."""
    confusion: list[list[int]]
    """Test rows by true class (rows) and predicted class (columns)."""
    calibration: list[dict[str, Any]]
    """Per bin of confidence: `lower`, `upper`, `count`, and mean `confidence` and `accuracy` (anything when empty)."""
    samples: tuple[Picture, ...]
    """Ordinary test images."""
    mistakes: tuple[Picture, ...]
    """Wrong predictions, the most confident first."""
    gate: dict[str, Any]
    """The gate's settings: `accuracy_floor`, `margin`, and others if there are any."""
    champion_metrics: dict[str, float] | None
    """Of the champion that was challenged, named as in `metrics`; none when there was no champion."""
    lineage: tuple[LineageStep, ...]
    """From the raw files to the report, in that order."""
    timings: list[tuple[str, float]]
    """Stages in their order and the seconds each took."""
    parameters: dict[str, Any]
    """All fields of the recipe."""
    command: str
    """The command line that makes this model again."""
    producer: dict[str, str | None]
    """Versions of the package and its libraries, and the git commit, where known."""
    training_images: tuple[tuple[np.ndarray, str], ...] = ()
    """The first that the model saw, augmented (uint8, HWC), and the names of their classes; empty: not kept."""


def render(data: ReportData) -> str:
    """The page as HTML that loads nothing from anywhere; the same `data` gives the same bytes.

    Everything in `data` is escaped. Images larger than 64 pixels a side are made smaller.
    """
    as_table = len(data.classes) <= _MAX_CELLS
    curves = [
        (title, Markup(plots.learning_curve(data.history, quantity, best_epoch=data.best_epoch)))
        for title, quantity in (("Loss", "loss"), ("Accuracy", "accuracy"))
    ]
    template = _environment().get_template("report.html.j2")
    return template.render(
        data=data,
        curves=curves,
        is_timed=any(row.get("seconds") for row in data.history),
        hints=[hint for _, hint in wait_hints(data.history)],
        reliability=Markup(plots.reliability(data.calibration, error=data.metrics["expected_calibration_error"])),
        diagram=lineage.draw(data.lineage),
        confusion=_confusion_rows(data) if as_table else None,
        confusion_png=None if as_table else plots.heat_map(data.confusion),
        pairs=_confused_pairs(data)[:_NUM_PAIRS],
        comparison=list(_comparison(data)),
    )


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"share": share, "number": number, "seconds": seconds, "png": plots.png}
    return environment


def number(value: float | None, digits: int = 4) -> str:
    """A number as the terminal shows it: whole ones with commas between thousands, others with four decimals."""
    if value is None or not plots.is_finite(value):
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.{digits}f}"


def share(value: float | None, whole: int = 1, digits: int = 4) -> str:
    """A share of `whole`: 0.9931 of 1 as `0.9931`, of 100 as `99.31`; never rounded up to the whole when it is less."""
    if value is not None and value < 1 and round(whole * value, digits) == whole:
        return f">{whole - 10**-digits:.{digits}f}"
    return number(whole * value if value is not None else None, digits)


def seconds(value: float) -> str:
    """Seconds with one decimal."""
    return f"{value:,.1f}\u00a0s"


def _confusion_rows(data: ReportData) -> list[tuple[str, list[tuple[int, str]]]]:
    """Per true class its name and, per predicted class, the count and the name of the cell's colour."""
    return [
        (data.classes[row], [(count, _cell(count, sum(counts), row == column)) for column, count in enumerate(counts)])
        for row, counts in enumerate(data.confusion)
    ]


def _cell(count: int, total: int, on_diagonal: bool) -> str:
    levels = _DIAGONAL_LEVELS if on_diagonal else _LEVELS
    level = sum(count / max(1, total) > bound for bound in levels)
    return f"{'right' if on_diagonal else 'wrong'}-{level}" if level else ""


def _confused_pairs(data: ReportData) -> list[tuple[int, float, str, str]]:
    """Count, share of the true class, true and predicted class of every confusion, the most frequent first."""
    pairs = [
        (count, count / sum(counts), data.classes[row], data.classes[column])
        for row, counts in enumerate(data.confusion)
        for column, count in enumerate(counts)
        if count and row != column
    ]
    return sorted(pairs, key=lambda pair: -pair[0])


def _comparison(data: ReportData) -> Iterator[tuple[str, str, str, str]]:
    """Name, challenger's value, champion's value and difference of each metric."""
    for name, value in data.metrics.items():
        champion = (data.champion_metrics or {}).get(name)
        show = share if name.endswith("accuracy") else number
        if name != "num_rows":
            difference = f"{value - champion:+.4f}".replace("-", "\u2212") if champion is not None else ""
            yield name.replace("_", " "), show(value), show(champion), difference
