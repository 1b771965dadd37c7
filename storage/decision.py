"""A decision about a champion, as the registry records it, and the difference of two models that it rests on."""

import datetime
from collections.abc import Callable
from typing import Final, Literal

from pydantic import AwareDatetime, BaseModel, ValidationInfo, field_validator

from storage import terminal
from storage.kinds import CheckpointURI, EvaluationURI
from storage.manifest import JSON
from storage.uri import URI

METRICS: Final = {"accuracy": "test_accuracy", "balanced_accuracy": "balanced_accuracy", "macro_f1": "macro_f1"}
"""Metrics that a gate may use, and their names in the statistics of an evaluation."""


class Difference(BaseModel, frozen=True, extra="forbid"):
    """Metric of a challenger minus that of a rival on the same rows, with its uncertainty."""

    metric: str
    """One of `METRICS`."""

    num_rows: int
    """Rows that both predicted."""
    only_challenger: int
    only_rival: int
    """Rows on which only the challenger, or only the rival, is right."""
    difference: float
    """Difference of the metrics, from -1 to 1."""
    lower: float | None
    upper: float | None
    """Ends of the 95% interval of `difference`; none for other metrics than accuracy."""
    p_value: float
    """Two-sided p-value of the exact test: probability of at least this difference if the models are equal."""

    def __str__(self) -> str:
        interval = "" if self.lower is None else f"95% interval {self.lower:+.4f} to {self.upper:+.4f}, "
        return (
            f"difference in {metric_title(METRICS[self.metric])} {self.difference:+.4f} ({interval}"
            f"exact test p = {self.p_value:.2g}); of {self.num_rows:,} rows, "
            f"{self.only_challenger:,} are correct only with this model, {self.only_rival:,} only with the other"
        )


def metric_title(name: str) -> str:
    """Return the name of a metric as sentences and tables have it, such as `macro F1`."""
    return name.replace("_", " ").replace("f1", "F1")


class Decision(BaseModel, frozen=True, extra="forbid"):
    """One decision of the gate or of a user: the champion from now on, and the reason.

    Results are URIs here and references in storage: as context of the validation, pass a function that resolves them.
    """

    number: int
    """Number of the decision, from 1, without gaps."""
    champion: CheckpointURI | None
    """The champion after this decision; none if no checkpoint was good enough so far."""
    weights: str | None = None
    """SHA-256 of the champion's weights; none if unknown, or if the champion stays."""
    challenger: CheckpointURI
    """The checkpoint that was judged."""
    evaluation: EvaluationURI | Literal[""]
    """The evaluation with the challenger's metrics; empty if it was promoted by hand."""
    promoted: bool
    withdraws: CheckpointURI | None = None
    """The champion that a rollback, or `forget`, removes; none for every other decision."""
    reason: str
    """One sentence for users."""
    gate: JSON = {}
    metrics: JSON = {}
    """Metrics on all test rows, by role (`challenger`, `champion`)."""
    scores: dict[str, dict[str, float]] = {}
    """The metrics that a gate may use, on the rows that counted, by role."""
    difference: Difference | None = None
    """Difference in the gate's metric from the champion; none without one."""
    known_difference: Difference | None = None
    """The same on the test rows with a label that the champion's own data had; none if these are all rows or none."""
    num_excluded: int = 0
    """Test rows that did not count, since a compared model was trained or validated on their images."""
    num_compared_before: int = 0
    """Other models that were compared with the champion while it was champion."""
    decided: AwareDatetime | None = None
    author: str | None = None
    """User or deployment, and run, that decided."""

    @field_validator("champion", "challenger", "evaluation", "withdraws", mode="before")
    @classmethod
    def _resolved(cls, value: object, info: ValidationInfo) -> object:
        resolve: Callable[[str], URI] | None = info.context
        return resolve(value) if resolve and value and isinstance(value, str) else value

    @property
    def verdict(self) -> str:
        """One word: `promoted`, `rejected`, `rollback`, or `unchanged` of the champion itself."""
        if self.withdraws and not self.gate:  # `forget` records the gate of the run
            return "rollback"
        return "promoted" if self.promoted else "unchanged" if self.challenger == self.champion else "rejected"

    @property
    def account(self) -> str:
        """Time, author and reason, if known: `2026-11-23 14:05 by ada: promoted by hand`."""
        known = [terminal.moment(self.decided) if self.decided else "", f"by {self.author}" if self.author else ""]
        return ": ".join(filter(None, [" ".join(filter(None, known)), self.reason]))

    @property
    def comparisons(self) -> list[str]:
        """The differences from the champion, each a sentence."""
        pairs = {"": self.difference, ", test rows whose label its data had": self.known_difference}
        return [f"compared with the champion{rows}: {found}" for rows, found in pairs.items() if found]

    def made_by(self, author: str | None) -> "Decision":
        return self.model_copy(update={"author": author, "decided": datetime.datetime.now(datetime.UTC)})
