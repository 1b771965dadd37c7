"""`python -m tests.concurrency`: a longer search for violations than that of `make test-slow`."""

import argparse
import contextlib
import re
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from storage.uri import Root
from tests import s3
from tests.concurrency import checker
from tests.concurrency.process_control import run_workers
from tests.concurrency.record import Recording
from tests.concurrency.violation import Violation

_EPILOG = """\
The seed determines the calls and the faults of each process, in order. How the processes interleave depends on the
kernel, so repeat a failed seed with --repeat.
exit codes: 0 no violation, 1 violation of the specification
"""


def main() -> int:
    """0 when the history can be explained, else 1, and the offending part of it is printed."""
    arguments = _parser().parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(arguments.folder or stack.enter_context(tempfile.TemporaryDirectory(prefix="concurrency-")))
        server = stack.enter_context(s3.serve(_made(folder / "server"))) if arguments.storage == "s3" else None
        for number in range(arguments.repeat):
            place = f"{number}-{uuid.uuid4().hex[:8]}"
            root = Root(f"s3://{server.bucket}/{place}" if server else str(folder / place))
            started = time.monotonic()
            recording = run_workers(
                root,
                seed=arguments.seed,
                operations=arguments.operations,
                folder=folder / f"history-{place}",
                server=server,
            )
            print(f"seed {arguments.seed}: {summary(recording)}, {time.monotonic() - started:.0f} s", flush=True)
            problem = report(recording)
            if problem:
                print(problem, f"seed {arguments.seed}: violated", sep="\n")
                return 1
    return 0


def report(recording: Recording) -> str:
    """The first violation of each kind with the calls around it; empty when there is none."""
    first: dict[str, Violation] = {}
    for violation in checker.violations(recording):
        first.setdefault(re.sub(r"\d+", "", violation.what), violation)
    return "\n\n".join(checker.told(violation, recording) for violation in first.values())


def summary(recording: Recording) -> str:
    """How many calls of each kind there were, and how they ended."""

    def outcomes() -> Iterator[str]:
        for each in recording.operations:
            yield each.does
            if each.error or each.ended == float("inf"):
                yield f"{each.does} {each.error or 'cut off'}"

    struck, counted = (
        ", ".join(f"{count} {what}" for what, count in sorted(counts.items()))
        for counts in (recording.struck, Counter(outcomes()))
    )
    return f"{len(recording.operations)} calls ({counted}) in {len(recording.lives)} processes ({struck})"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tests.concurrency",
        description="Let several processes contend for leases, commits and the registry, and check their history.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--seed", type=int, default=0, help="seed of all random choices (default: %(default)s)")
    add("--operations", type=int, default=4000, metavar="N", help="steps of all processes (default: %(default)s)")
    add("--storage", choices=("disk", "s3"), default="disk", help="a folder or a local S3 server (default: disk)")
    add("--repeat", type=int, default=1, metavar="N", help="most repetitions, until one fails (default: %(default)s)")
    add("--folder", metavar="DIR", help="keep storage and histories there (default: deleted at the end)")
    return made


if __name__ == "__main__":
    sys.exit(main())
