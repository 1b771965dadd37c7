"""Errors in the log of Prefect's server, as lines for the terminal of `make up`."""

import re
from collections import Counter
from collections.abc import Iterator

from storage.uri import redact_text

_RECORD = re.compile(r"(\d\d:\d\d:\d\d\.\d{3} \| )?(?P<level>[A-Z]+)\s*[|:] ")
"""Start of a log record, of Prefect or uvicorn; other lines, such as tracebacks, continue the record before."""
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*: ")
_LONGEST = 300


class ErrorLines:
    """Error records of a log that arrives in pieces, one line each; a repeated one at its 10th, 100th, ... time."""

    def __init__(self) -> None:
        self._record: list[str] = []
        self._counts: Counter[str] = Counter()

    def read(self, text: str) -> Iterator[str]:
        """Yield the errors that `text`, the log's next whole lines, completes; without further lines, the last one."""
        lines = text.splitlines()
        for line in lines:
            if _RECORD.match(line):
                yield from self._end_record()
            self._record.append(line)
        if not lines:
            yield from self._end_record()

    def _end_record(self) -> Iterator[str]:
        record, self._record = self._record, []
        start = _RECORD.match(record[0]) if record else None
        if start is None or start["level"] not in ("ERROR", "CRITICAL"):
            return
        causes = [line for line in record[1:] if _EXCEPTION.match(line)]
        line = redact_text(": ".join([record[0].strip(), *causes[-1:]]))[:_LONGEST]
        key = re.sub(r"\s*\d+", "0", line)  # times and durations differ
        self._counts[key] += 1
        times = self._counts[key]
        if re.fullmatch("10*", str(times)):
            yield f"server: {line}" + (f" ({times} times so far)" if times > 1 else "")
