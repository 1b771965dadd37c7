"""A violation: what the specification forbids and the history shows."""

from tests.concurrency.record import Operation


class Violation:
    """One contradiction, and the calls that contradict each other."""

    def __init__(self, what: str, *operations: Operation) -> None:
        self.what = what
        self.operations = operations
