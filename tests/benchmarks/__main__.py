"""`make bench`: compare this project with a hand-written script and a notebook."""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from tasks.learning import sources
from tests.benchmarks import data
from tests.benchmarks.bench import Bench
from tests.benchmarks.lines import FULL_ONLY, LINES
from tests.benchmarks.ratios import Ratio

_EPILOG = """\
Every ratio is the median over pairs of alternating runs. Use an otherwise idle machine.
The exit code is 1 if a ratio misses its target beyond the noise (its median, and at least four of five pairs), else 0.
A single pair never misses. On the sample there are no targets for lines that consist mostly of the start-up time: with
--quick lines 1, 2 (resident), 3, 4, 6 and 8 are judged."""
_TITLES = ("", "what", "ours", "other", "", "ratio", "of the pairs", "target", "")


def main() -> int:
    """Measure and print the table; return 0 if no target is missed."""
    given = parser().parse_args()
    if given.repeat is not None and given.repeat < 1:
        raise SystemExit(f"error: --repeat must be >= 1, got {given.repeat}")
    unknown = sorted(set(given.only) - set(LINES))
    if unknown:
        raise SystemExit(f"error: --only must be one of {', '.join(LINES)}, got {unknown[0]!r}")
    console = Console(width=None if sys.stdout.isatty() else 150)
    source = given.source or (data.SAMPLE if given.quick else sources.load("mnist").mirrors[0])
    about = machine(source)
    with tempfile.TemporaryDirectory(prefix="bench-", dir=given.folder) as folder:
        os.environ["PREFECT_HOME"] = str(Path(folder, "prefect"))
        bench = Bench(Path(folder), source=source, quick=given.quick, repeat=given.repeat)
        ratios: list[Ratio] = []
        for name in given.only or [name for name in LINES if not (given.quick and name in FULL_ONLY)]:
            begun = time.monotonic()
            for ratio in LINES[name](bench):
                ratios.append(ratio)
                judged = f" ({ratio.target}, {ratio.verdict})" if ratio.target else ""
                console.print(f"{ratio.what}: {ratio.median:.3g}{judged}", highlight=False)
            console.print(f"  {name}: {time.monotonic() - begun:.0f} s", highlight=False, style="dim")
    about["load after"] = os.getloadavg()
    report = markdown(ratios, about)
    console.print(report, markup=False, highlight=False, soft_wrap=True)
    if given.out:
        given.out.with_suffix(".md").write_text(report)
        given.out.with_suffix(".json").write_text(to_json(ratios, about))
    return 1 if any(ratio.verdict == "missed" for ratio in ratios) else 0


def parser() -> argparse.ArgumentParser:
    """The options."""
    made = argparse.ArgumentParser(
        prog="python -m tests.benchmarks",
        description="Compare the pipeline with a hand-written script (plain) and a tutorial's notebook (seed).",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add(
        "--quick",
        action="store_true",
        help="about ten minutes: the sample, one epoch; no targets that are for all of MNIST, no lines 5 and 9",
    )
    add("--repeat", metavar="N", type=int, help="pairs of lines of a minute or more (default: 3; with --quick 1)")
    add("--source", metavar="URL_OR_DIR", help="mirror or folder of MNIST, or 'sample' (default: MNIST's first mirror)")
    add("--only", metavar="NAME", action="append", default=[], help=f"one of {', '.join(LINES)}; repeatable")
    add("--out", metavar="FILE", type=Path, help="also write FILE.md and FILE.json")
    add("--folder", metavar="DIR", help="folder for temporary files (default: the system's)")
    return made


def machine(source: str) -> dict[str, Any]:
    """What has to be known to read the figures."""
    cpu = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        platform.processor(),
    )
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    packages = ("ray", "torch", "prefect", "pyarrow")
    return {
        "machine": f"{os.cpu_count()} x {cpu}, {memory:.0f} GiB",
        "data": "the sample of MNIST" if source == data.SAMPLE else "MNIST",
        "versions": {"python": platform.python_version()}
        | {name: importlib.metadata.version(name) for name in packages},
        "load before": os.getloadavg(),
    }


def markdown(ratios: Sequence[Ratio], about: dict[str, Any]) -> str:
    """The table and what it was measured on."""
    lines: list[tuple[str, ...]] = [_TITLES, ("---:", "---", "---:", "---:", "---", "---:", "---:", "---:", "---")]
    for ratio in sorted(ratios, key=lambda ratio: ratio.number):
        figures = [f"{statistics.median(values):,.4g}" for values in (ratio.ours, ratio.other)]
        lines.append(
            (
                *(str(ratio.number), ratio.what, *figures, ratio.unit),
                *(
                    f"{ratio.median:.3g}",
                    f"{min(ratio.ratios):.3g} to {max(ratio.ratios):.3g}" if len(ratio.ours) > 1 else "one pair",
                    str(ratio.target or ""),
                    ratio.verdict,
                ),
            )
        )
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    facts = "".join(f"- {name}: {_fact(value)}\n" for name, value in about.items())
    return f"{table}\n{facts}"


def to_json(ratios: Sequence[Ratio], about: dict[str, Any]) -> str:
    """Every figure of every pair."""
    listed = [
        dataclasses.asdict(ratio) | {"ratio": ratio.median, "ratios": ratio.ratios, "verdict": ratio.verdict}
        for ratio in ratios
    ]
    return json.dumps({"about": about, "lines": listed}, indent=1, allow_nan=False) + "\n"


def _fact(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {version}" for name, version in value.items())
    if isinstance(value, tuple):
        return ", ".join(f"{number:.2f}" for number in value)
    return str(value)


if __name__ == "__main__":
    raise SystemExit(main())
