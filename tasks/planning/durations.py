"""Durations as users write them: a number and a unit."""

import re

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 24 * 3600}
_PATTERN = r"^[0-9]+(\.[0-9]+)?[smhd]$"
_MOST_S = 365 * _SECONDS["d"]
"""A year; the timers of Python, torch and Ray do not accept arbitrarily large values."""


def parse_duration(text: str, *, option: str) -> float:
    """Return the seconds of a duration such as `30s`, `10m`, `2h` or `1d`; raise `ValueError` naming `option`."""
    if not isinstance(text, str) or not re.match(_PATTERN, text):
        raise ValueError(f"{option} must be a number with a unit, s, m, h or d, got {text!r}; use for example 10m")
    seconds = float(text[:-1]) * _SECONDS[text[-1]]
    if not 0 < seconds <= _MOST_S:
        raise ValueError(f"{option} must be more than 0s and at most 365d, got {text!r}; use for example 10m")
    return seconds
