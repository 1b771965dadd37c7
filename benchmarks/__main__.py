"""`make bench`: compare this project with a hand-written script."""

import argparse
import importlib.metadata
import os
import platform
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from benchmarks import lines
from benchmarks.lines import SAMPLE, Bench
from benchmarks.ratios import Ratio
from tasks.learning import sources

LINES: dict[str, Callable[[Bench], Iterator[Ratio]]] = {
    "ingest": lines.ingest,
    "prediction": lines.prediction,
    "whole": lines.whole,
}
"""In the order in which they are measured."""
_EPILOG = """\
Every ratio says how many times the time of the other side ours takes: the median over pairs of alternating runs.
Use an otherwise idle machine.
The exit code is 1 if a ratio misses its target beyond the noise (its median, and at least four of five pairs), else 0.
A single pair never misses. On the sample there are no targets for lines that consist mostly of the start-up time."""


def main() -> int:
    """Measure and print the table; return 0 if no target is missed."""
    arguments = parser().parse_args()
    if arguments.repeat is not None and arguments.repeat < 1:
        raise SystemExit(f"error: --repeat must be >= 1, got {arguments.repeat}")
    mirror = arguments.mirror or (SAMPLE if arguments.quick else sources.load("mnist").mirrors[0])
    facts = machine(mirror)
    ratios = list[Ratio]()
    with tempfile.TemporaryDirectory(prefix="bench-", dir=arguments.folder) as folder:
        os.environ["PREFECT_HOME"] = str(Path(folder, "prefect"))
        bench = Bench(Path(folder), mirror=mirror, quick=arguments.quick, repeat=arguments.repeat)
        for name in arguments.only or LINES:
            started = time.monotonic()
            ratios += LINES[name](bench)
            print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)
    table = markdown(ratios, facts | {"load after": load()})
    print(table)
    if arguments.out:
        arguments.out.write_text(table)
    return 1 if any(ratio.verdict == "missed" for ratio in ratios) else 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description="Compare the pipeline with a hand-written script (plain).",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = options.add_argument
    add("--quick", action="store_true", help="a few minutes: the sample, one epoch; no targets for all of MNIST")
    add("--repeat", metavar="N", type=int, help="pairs of lines of a minute or more (default: 3; with --quick 1)")
    add("--mirror", metavar="URL_OR_DIR", help="mirror or folder of MNIST, or 'sample' (default: MNIST's first mirror)")
    add("--only", choices=LINES, action="append", default=[], help="only this line; repeatable")
    add("--out", metavar="FILE", type=Path, help="also write the table to FILE")
    add("--folder", metavar="DIR", help="folder for temporary files (default: the system's)")
    return options


def machine(mirror: str) -> dict[str, str]:
    """What has to be known to read the figures."""
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()) or [platform.processor()]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = [f"{name} {importlib.metadata.version(name)}" for name in ("ray", "torch", "prefect", "pyarrow")]
    return {
        "machine": f"{os.cpu_count()} x {names[0]}, {memory:.0f} GiB",
        "data": "the sample of MNIST" if mirror == SAMPLE else "MNIST",
        "versions": ", ".join([f"python {platform.python_version()}", *packages]),
        "load before": load(),
    }


def load() -> str:
    """Processes that ran or waited to, on average of the last 1, 5 and 15 minutes."""
    return ", ".join(f"{number:.2f}" for number in os.getloadavg())


def markdown(ratios: Sequence[Ratio], facts: Mapping[str, str]) -> str:
    """The table and what it was measured on."""
    titles = ("what", "ours", "other", "", "times the time", "of the pairs", "target", "")
    rows = [titles, ("---", "---:", "---:", "---", "---:", "---:", "---:", "---"), *(ratio.cells for ratio in ratios)]
    table = "".join(f"| {' | '.join(row)} |\n" for row in rows)
    return table + "\n" + "".join(f"- {name}: {value}\n" for name, value in facts.items())


if __name__ == "__main__":
    raise SystemExit(main())
