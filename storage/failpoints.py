"""Failpoints: named points of a run at which tests watch or interfere; nothing happens at them otherwise."""

from collections.abc import Callable

handler: Callable[[str, str], None] | None = None
"""Called with the name of each failpoint and what the process is working on, such as a URI; set only by tests."""
rank: int | None = None
"""Rank of the training worker that this process is, if it is one."""


def failpoint(point: str, at: str = "") -> None:
    """Mark a point at which tests may interfere; `at` is what the process is at work on there, such as a URI."""
    if handler is not None:
        handler(point, str(at))
