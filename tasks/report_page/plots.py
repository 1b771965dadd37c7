"""Plots as inline SVG in the page's colours and font, and images as PNG data URIs."""

import base64
import contextlib
import io
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import escape

from storage.manifest import JSON
from storage.statistics import EpochMetrics
from tasks.learning.metrics import wilson

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK, _LINE, _MUTED, _ACCENT = ("#010101", "#020202", "#030303", "#040404")
"""Placeholder colours, replaced by the page's CSS variables so that plots follow its light and dark schemes."""
_VARIABLES = {_INK: "--ink", _LINE: "--line", _MUTED: "--muted", _ACCENT: "--accent"}
_STYLE = {
    "svg.fonttype": "none",
    "font.size": 10,
    "grid.color": _LINE,
    "text.color": _MUTED,
    "axes.edgecolor": _LINE,
    "axes.labelcolor": _MUTED,
    "xtick.color": _LINE,
    "xtick.labelcolor": _MUTED,
    "ytick.color": _LINE,
    "ytick.labelcolor": _MUTED,
}
"""Differences from matplotlib's defaults; the user's settings do not count."""
_MAX_SIDE = 64
"""Maximum side of an image in pixels; keeps seventy photographs below a megabyte."""


def learning_curve(history: Sequence[EpochMetrics], quantity: str, *, best_epoch: int) -> str:
    """Plot `quantity` (loss or accuracy) per epoch for training and validation as SVG, with the best epoch marked."""
    from matplotlib.ticker import MaxNLocator

    epochs = [row.epoch for row in history]
    with _figure(height=2.7) as figure:
        axes = figure.subplots()
        _frame(axes)
        ranges = []
        for split, colour, dashes in (("train", _MUTED, "--"), ("validation", _ACCENT, "-")):
            values = [getattr(row, f"{split}_{quantity}") for row in history]
            marker = "o" if len(epochs) <= 20 else ""
            axes.plot(epochs, values, dashes, color=colour, label=split, linewidth=1.8, marker=marker, markersize=3.5)
            ranges.append(f"{split} from {values[0]:.4f} to {values[-1]:.4f}")
        axes.axvline(best_epoch, color=_INK, linewidth=0.8, linestyle=":")
        axes.plot(
            [best_epoch], [values[epochs.index(best_epoch)]], "o", markersize=9, markerfacecolor="none",
            markeredgecolor=_INK, markeredgewidth=1.3, label=f"best epoch ({best_epoch})",
        )  # fmt: skip
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=8, min_n_ticks=1))
        axes.set(xlabel="epoch", ylabel=quantity, xlim=(min(epochs) - 0.3, max(epochs) + 0.3))
        _legend(axes)
    label = f"{quantity.capitalize()} per epoch: {', '.join(ranges)}; best epoch {best_epoch}"
    return _svg(figure, name=quantity, label=label)


def reliability(calibration: Sequence[JSON]) -> str:
    """Plot accuracy with its interval against mean confidence by bin, above the number of rows per bin, as SVG."""
    bins = [entry for entry in calibration if entry["count"]]
    accuracies = [entry["accuracy"] for entry in bins]
    intervals = [wilson(entry["accuracy"], entry["count"]) for entry in bins]
    reach = [[max(0, p - low), max(0, high - p)] for p, (low, high) in zip(accuracies, intervals, strict=True)]
    with _figure(height=4) as figure:
        top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
        for axes in (top, bottom):
            _frame(axes)
        top.plot([0, 1], [0, 1], "--", color=_MUTED, linewidth=1, label="perfect")
        top.errorbar(
            [entry["confidence"] for entry in bins], accuracies, np.transpose(reach) if reach else None, fmt="o",
            color=_ACCENT, markersize=4.5, elinewidth=1.2, label="accuracy",
        )  # fmt: skip
        top.set(xlim=(0, 1.02), ylim=(0, 1.04), ylabel="share of correct predictions")
        _legend(top)
        middles = [(entry["lower"] + entry["upper"]) / 2 for entry in bins]
        widths = [0.92 * (entry["upper"] - entry["lower"]) for entry in bins]
        bottom.bar(middles, [entry["count"] for entry in bins], widths, color=_MUTED, alpha=0.6)
        bottom.set(yscale="log", xlabel="confidence", ylabel="rows")
        bottom.set_ylim(bottom=0.5)
        bottom.yaxis.set_major_formatter("{x:,.0f}")
    summary = f"in the {len(bins)} non-empty of {len(calibration)} bins"
    return _svg(figure, name="reliability", label=f"Reliability: accuracy against confidence {summary}")


def png(image: np.ndarray, side: int = _MAX_SIDE) -> str:
    """Encode an image (uint8, HWC, 1 or 3 channels) as a PNG data URI, scaled down to at most `side` pixels a side."""
    from PIL import Image

    picture = Image.fromarray(np.ascontiguousarray(image.squeeze(2) if image.shape[2] == 1 else image))
    picture.thumbnail((side, side))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


@contextlib.contextmanager
def _figure(*, height: float) -> Iterator["Figure"]:
    from matplotlib import figure, style

    with style.context(_STYLE, after_reset=True):
        yield figure.Figure(figsize=(4.2, height), layout="constrained")


def _frame(axes: "Axes") -> None:
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.7)
    axes.tick_params(length=0)
    axes.set_axisbelow(True)


def _legend(axes: "Axes") -> None:
    axes.legend(
        loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=3, frameon=False, borderaxespad=0.2, handlelength=1.6,
        columnspacing=1.6, labelcolor=_INK,
    )  # fmt: skip


def _svg(figure: "Figure", *, name: str, label: str) -> str:
    """Write `figure` as inline SVG for HTML, with deterministic bytes and ids that are unique to `name`."""
    from matplotlib import style

    buffer = io.StringIO()
    with style.context(_STYLE | {"svg.hashsalt": name}, after_reset=True):
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None})
    svg = buffer.getvalue()
    svg = re.sub(r"(?s)<metadata>.*?</metadata>|<style.*?</style>|<!--.*?-->", "", svg[svg.index("<svg") :])
    svg = re.sub(r'( id="|href="#|url\(#)', rf"\g<1>{name}-", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, f"var({variable})")
    return svg.replace("<svg ", f'<svg class="plot" role="img" aria-label="{escape(label)}" ', 1)
