"""Ratios of two alternating arms, and whether they meet their targets."""

import dataclasses
import statistics
from collections.abc import Callable, Sequence


@dataclasses.dataclass(frozen=True, kw_only=True)
class Target:
    """What a ratio has to be."""

    value: float
    at_least: bool
    """Else at most."""

    def allows(self, ratio: float) -> bool:
        """Whether `ratio` meets it."""
        return ratio >= self.value if self.at_least else ratio <= self.value

    def __str__(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.value:g}"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ratio:
    """One line of the table."""

    number: int
    """Of the line, as documented."""
    what: str
    ours: Sequence[float]
    """One figure for each pair."""
    other: Sequence[float]
    """The arm beside it; ones where the figure is a ratio already or has a target of its own."""
    unit: str
    target: Target | None
    """None: there to be seen."""

    @property
    def ratios(self) -> list[float]:
        """Of each pair."""
        return [mine / other for mine, other in zip(self.ours, self.other, strict=True)]

    @property
    def median(self) -> float:
        """Of all pairs."""
        return statistics.median(self.ratios)

    @property
    def verdict(self) -> str:
        """`met` as the median is, else `missed`, or `within noise` when more than a fifth of the pairs met the target.

        Of a single pair `met` or `not judged`; empty without a target. Where the true ratio is the target itself, two,
        three and five pairs are called `missed` by chance once in four, eight and five times.
        """
        if self.target is None:
            return ""
        if self.target.allows(self.median):
            return "met"
        if len(self.ratios) == 1:
            return "not judged"
        met = sum(self.target.allows(ratio) for ratio in self.ratios)
        return "within noise" if met > len(self.ratios) / 5 else "missed"


def in_turn(first: Callable[[], float], second: Callable[[], float], *, pairs: int) -> tuple[list[float], list[float]]:
    """Figures of both, taken in the order A B, B A, A B ..., so that a drift of the machine meets both alike."""
    figures: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            figures[which].append((first, second)[which]())
    return figures
