"""`make faults`: inject every kind of fault at least once, and print a table of the results."""

import argparse
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import mean

from tests.faults import harness
from tests.faults.case import Outcome, carry_out
from tests.faults.kinds import KINDS

_EPILOG = """\
The same seed gives the same plan. To repeat a case:  --only NAME --seed SEED
The exit code is 0 if all cases were survived, else 1."""


def main() -> int:
    """Carry out the plan; return 0 if all cases were survived."""
    arguments = parser().parse_args()
    plan = make_plan(arguments)
    if arguments.list:
        print(*(f"{name}  (seed {seed})" for name, seed in plan), sep="\n")
        return 0
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        return _carry_out(plan, Path(arguments.folder or temporary))


def make_plan(arguments: argparse.Namespace) -> list[tuple[str, int]]:
    """Kinds and the seed of each case, in order: every kind once, then again until there are `--count` cases."""
    unknown = sorted(set(arguments.only) - set(KINDS))
    if unknown:
        raise SystemExit(f"error: --only must be one of the kinds that --list shows, got {unknown[0]!r}")
    names = arguments.only or [name for name, kind in KINDS.items() if kind.is_quick or not arguments.quick]
    count = max(len(names), arguments.count)
    return [(names[index % len(names)], arguments.seed + index // len(names)) for index in range(count)]


def parser() -> argparse.ArgumentParser:
    """The options of the suite."""
    options = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Inject every kind of fault into real runs; compare the results with an uninterrupted run's.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = options.add_argument
    add("--quick", action="store_true", help="short form, about 8 minutes")
    add("--count", type=int, default=0, metavar="N", help="at least N cases; more of them use more seeds")
    add("--seed", type=int, default=0, help="seed of all random choices (default: %(default)s)")
    add("--only", action="append", default=[], metavar="NAME", help="only this kind; repeatable")
    add("--list", action="store_true", help="print the plan and exit")
    add("--folder", metavar="DIR", help="keep storage, logs and history there (default: deleted at the end)")
    return options


def _carry_out(plan: Sequence[tuple[str, int]], folder: Path) -> int:
    outcomes: dict[str, list[Outcome]] = {}
    started = time.monotonic()
    with harness.prepared(folder) as prepared:
        print(f"the golden run took {time.monotonic() - started:.0f} s; {len(plan)} cases", flush=True)
        for number, (name, seed) in enumerate(plan, 1):
            outcome = carry_out(prepared, name, KINDS[name].scenario, seed=seed)
            outcomes.setdefault(name, []).append(outcome)
            verdict = "survived" if outcome.survived else "NOT SURVIVED"
            print(f"[{number}/{len(plan)}] {verdict} {name}: {outcome.seconds:.0f} s", flush=True)
            if outcome.problem:
                print(outcome.problem, flush=True)
    table = "\n".join(_table(outcomes)) + "\n"
    (folder / "table.md").write_text(table)
    print(table)
    lost = sum(not outcome.survived for tries in outcomes.values() for outcome in tries)
    print(f"{len(plan) - lost} of {len(plan)} survived in {(time.monotonic() - started) / 60:.0f} minutes")
    return 1 if lost else 0


def _table(outcomes: Mapping[str, Sequence[Outcome]]) -> Iterator[str]:
    yield "| kind | tries | survived | worst recovery | seconds |"
    yield "| --- | ---: | ---: | ---: | ---: |"
    for name, tries in outcomes.items():
        recoveries = [outcome.recovery_s for outcome in tries if outcome.recovery_s is not None]
        worst = f"{max(recoveries):.1f} s" if recoveries else "-"
        survived, seconds = sum(outcome.survived for outcome in tries), mean(outcome.seconds for outcome in tries)
        yield f"| {name} | {len(tries)} | {survived} | {worst} | {seconds:.0f} |"


if __name__ == "__main__":
    raise SystemExit(main())
