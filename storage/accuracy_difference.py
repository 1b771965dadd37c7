"""Difference between the accuracies of two models on the same rows, with its uncertainty."""

import math

from pydantic import BaseModel

_Z = 1.959963984540054
"""Two-sided 95 % of the normal distribution."""


class Difference(BaseModel, frozen=True, extra="forbid"):
    """Accuracy of a challenger minus that of a rival on the same rows, with its uncertainty."""

    num_rows: int
    """Rows that both predicted."""
    only_challenger: int
    only_rival: int
    """Rows on which only the challenger, or only the rival, is right."""
    difference: float
    """Difference of the accuracies, from -1 to 1."""
    lower: float
    upper: float
    """Ends of the 95 % interval of `difference`."""
    p_value: float
    """Two-sided p-value of the exact McNemar test: probability of at least this difference if the models are equal."""

    @classmethod
    def of(cls, *, only_challenger: int, only_rival: int, num_rows: int) -> "Difference":
        """Compute the difference from the numbers of rows that only one of the two models predicts correctly."""
        lower, upper = interval(only_challenger, only_rival, num_rows=num_rows)
        return cls(
            num_rows=num_rows,
            only_challenger=only_challenger,
            only_rival=only_rival,
            difference=(only_challenger - only_rival) / num_rows,
            lower=lower,
            upper=upper,
            p_value=p_value(only_challenger, only_rival),
        )

    def __str__(self) -> str:
        return (
            f"difference {self.difference:+.4f} (95 % interval {self.lower:+.4f} to {self.upper:+.4f}, exact McNemar "
            f"p = {self.p_value:.2g}); of {self.num_rows:,} rows, {self.only_challenger:,} are correct only with "
            f"this model, {self.only_rival:,} only with the other"
        )


def p_value(one: int, other: int) -> float:
    """Compute the two-sided p-value of the exact McNemar test for `one` and `other` discordant rows (McNemar 1947).

    It is a sign test: if the models are equally good, a discordant row is of either kind with probability 1/2.
    """
    total = one + other
    term = tail = 1
    for number in range(min(one, other)):
        term = term * (total - number) // (number + 1)
        tail += term
    return min(1.0, 2 * tail / (1 << total))


def interval(one: int, other: int, *, num_rows: int) -> tuple[float, float]:
    """Compute the 95 % interval of the difference of two paired proportions (Bonett and Price 2012, adjusted Wald).

    Its width is positive even if no row is discordant, and its coverage holds for as few as some dozen rows.
    """
    shares = ((one + 1) / (num_rows + 2), (other + 1) / (num_rows + 2))
    middle = shares[0] - shares[1]
    half = _Z * math.sqrt((sum(shares) - middle**2) / (num_rows + 2))
    return max(-1.0, middle - half), min(1.0, middle + half)
