"""`make faults`: inject every kind of fault at least once, and print a table of the results."""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tests.faults import harness, mutations
from tests.faults.case import Outcome, carry_out
from tests.faults.kinds import KINDS
from tests.runs import CHECKOUT

_EPILOG = """\
The same seed gives the same plan. To repeat a case:  --only NAME --seed SEED
The exit code is 0 if all cases were survived, else 1."""


def main() -> int:
    """Carry out the plan; return 0 if all cases were survived."""
    arguments = parser().parse_args()
    console = Console(width=None if sys.stdout.isatty() else 150)
    plan = make_plan(arguments)
    if arguments.list:
        for name, seed in plan:
            console.print(f"{name}  (seed {seed})", highlight=False)
        return 0
    with tempfile.TemporaryDirectory(prefix="faults-") as temporary:
        folder = Path(arguments.folder or temporary)
        if arguments.mutations:
            return mutations.check(folder, console, only=arguments.only)
        return _faults(plan, folder, console)


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
    made = argparse.ArgumentParser(
        prog="python -m tests.faults",
        description="Inject every kind of fault into real runs; compare the results with an uninterrupted run's.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--quick", action="store_true", help="short form, about 5 minutes")
    add("--count", type=int, default=0, metavar="N", help="at least N cases; more of them use more seeds")
    add("--seed", type=int, default=0, help="seed of all random choices (default: %(default)s)")
    add("--only", action="append", default=[], metavar="NAME", help="only this kind; repeatable")
    add("--list", action="store_true", help="print the plan and exit")
    add("--mutations", action="store_true", help="disable each safeguard in turn; fail if no case detects it")
    add("--folder", metavar="DIR", help="keep storage, logs and history there (default: deleted at the end)")
    return made


def _faults(plan: Sequence[tuple[str, int]], folder: Path, console: Console) -> int:
    outcomes: dict[str, list[Outcome]] = {}
    started = time.monotonic()
    with harness.prepared(folder, checkout=CHECKOUT) as made:
        console.print(f"the golden run took {time.monotonic() - started:.0f} s; {len(plan)} cases", highlight=False)
        for number, (name, seed) in enumerate(plan, 1):
            outcome = carry_out(made, name, KINDS[name].scenario, seed=seed)
            outcomes.setdefault(name, []).append(outcome)
            verdict = "survived" if outcome.survived else "NOT SURVIVED"
            console.print(f"[{number}/{len(plan)}] {verdict} {name}: {outcome.seconds:.0f} s".replace("[", r"\["))
            if outcome.problem:
                console.print(escape(outcome.problem), highlight=False)
    console.print(_table(outcomes))
    lost = sum(not outcome.survived for tries in outcomes.values() for outcome in tries)
    console.print(f"{len(plan) - lost} of {len(plan)} survived in {(time.monotonic() - started) / 60:.0f} minutes")
    (folder / "table.md").write_text(_markdown(outcomes))
    return 1 if lost else 0


_TITLES = ("kind", "tries", "survived", "worst recovery", "seconds")


def _rows(outcomes: dict[str, list[Outcome]]) -> Iterator[tuple[str, ...]]:
    for name, tries in outcomes.items():
        measured = [outcome.recovery_s for outcome in tries if outcome.recovery_s is not None]
        worst = f"{max(measured):.1f} s" if measured else "-"
        survived = str(sum(outcome.survived for outcome in tries))
        seconds = f"{statistics.mean(outcome.seconds for outcome in tries):.0f}"
        yield name, str(len(tries)), survived, worst, seconds


def _table(outcomes: dict[str, list[Outcome]]) -> Table:
    table = Table(_TITLES[0], box=None, pad_edge=False, header_style="bold")
    for title in _TITLES[1:]:
        table.add_column(title, justify="right")
    for row in _rows(outcomes):
        table.add_row(*row)
    return table


def _markdown(outcomes: dict[str, list[Outcome]]) -> str:
    lines = [_TITLES, ("---", *("---:",) * 4), *_rows(outcomes)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


if __name__ == "__main__":
    raise SystemExit(main())
