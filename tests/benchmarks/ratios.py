"""Ratios of two alternating arms, and whether they meet their targets."""

import dataclasses
from collections.abc import Callable, Sequence
from statistics import median


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


def at_least(value: float) -> Target:
    """A target."""
    return Target(value=value, at_least=True)


def at_most(value: float) -> Target:
    """A target."""
    return Target(value=value, at_least=False)


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
    target: Target | None = None
    """None: there to be seen."""

    @property
    def ratios(self) -> list[float]:
        """Of each pair: how many times the other arm's time ours takes."""
        pairs = zip(self.ours, self.other, strict=True)
        return [other / mine if self.unit.endswith("/s") else mine / other for mine, other in pairs]

    @property
    def median(self) -> float:
        """Of all pairs."""
        return median(self.ratios)

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

    @property
    def cells(self) -> tuple[str, ...]:
        """Its line of the table."""
        figures = [f"{median(values):,.4g}" for values in (self.ours, self.other)]
        pairs = f"{min(self.ratios):.3g} to {max(self.ratios):.3g}" if len(self.ours) > 1 else "one pair"
        target = str(self.target or "")
        return (str(self.number), self.what, *figures, self.unit, f"{self.median:.3g}", pairs, target, self.verdict)


def in_turn(first: Callable[[], float], second: Callable[[], float], *, pairs: int) -> tuple[list[float], list[float]]:
    """Figures of both, taken in the order A B, B A, A B ..., so that a drift of the machine meets both alike."""
    figures: tuple[list[float], list[float]] = ([], [])
    for pair in range(pairs):
        for which in (0, 1) if pair % 2 == 0 else (1, 0):
            figures[which].append((first, second)[which]())
    return figures
