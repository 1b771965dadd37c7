"""Ratios of two alternating sides, and whether they meet their targets."""

import dataclasses
from collections.abc import Callable, Sequence
from statistics import median


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ratio:
    """One line of the table."""

    what: str
    ours: Sequence[float]
    """One figure for each pair."""
    other: Sequence[float] = ()
    """Figures of the other side; empty if the line is about the pipeline alone."""
    unit: str
    at_most: float | None = None
    """Target of the ratio, or of the figure where there is no other side; None: there to be seen."""

    @property
    def ratios(self) -> list[float]:
        """For each pair, how many times the other side's time the pipeline takes."""
        pairs = zip(self.ours, self.other or [1.0] * len(self.ours), strict=True)
        return [other / mine if self.unit.endswith("/s") else mine / other for mine, other in pairs]

    @property
    def median(self) -> float:
        """Of all pairs."""
        return median(self.ratios)

    @property
    def verdict(self) -> str:
        """`met` if the median is, else `missed`, or `within noise` if more than a fifth of the pairs met the target.

        A single pair is `met` or `not judged`; empty without a target. If the true ratio is the target itself, two,
        three and five pairs are called `missed` by chance once in four, eight and five times.
        """
        if self.at_most is None:
            return ""
        if self.median <= self.at_most:
            return "met"
        if len(self.ratios) == 1:
            return "not judged"
        met = sum(ratio <= self.at_most for ratio in self.ratios)
        return "within noise" if met > len(self.ratios) / 5 else "missed"

    @property
    def cells(self) -> tuple[str, ...]:
        """Its line of the table."""
        figures = [f"{median(values):,.4g}" if values else "" for values in (self.ours, self.other)]
        pairs = f"{min(self.ratios):.3g} to {max(self.ratios):.3g}" if len(self.ours) > 1 else "one pair"
        target = "" if self.at_most is None else f"<= {self.at_most:g}"
        return (self.what, *figures, self.unit, f"{self.median:.3g}", pairs, target, self.verdict)


def in_turn(first: Callable[[], float], second: Callable[[], float], *, pairs: int) -> tuple[list[float], list[float]]:
    """Figures of both, taken in the order A B, B A, A B ..., so that a drift of the machine meets both alike."""
    figures: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            figures[which].append((first, second)[which]())
    return figures
