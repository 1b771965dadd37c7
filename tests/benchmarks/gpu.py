"""Measure the CIFAR-10 recipes on one GPU, and compare the figures with their targets."""

import argparse
import dataclasses
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasks.learning import recipes, sources
from tasks.resources import devices
from tests.benchmarks.gpu_bench import TRAIN_ROWS, Bench
from tests.benchmarks.gpu_lines import LINES, Measured
from tests.benchmarks.ratios import Target
from tests.runs import CHECKOUT

_EPILOG = """\
The targets are for one H100 or H200, on which all lines should take about ten minutes. Use an otherwise idle GPU. Each
line is measured in a separate process. Targets apply only on a GPU, with all rows and without --set. The exit code is 1
if a target is missed or a line failed, else 0, also if there is no GPU, which one line then says."""
_LINE_LIMIT_S = 600


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print all lines; return 0 if no target is missed and no line failed."""
    given = _parser().parse_args(arguments)
    settings = _checked(given)
    console = Console(width=None if sys.stdout.isatty() else 160)
    asked = settings.get("device", "cuda")
    if asked == "cuda" and (trouble := devices.trouble()):
        console.print(f"skipped: no GPU to measure: {trouble}", markup=False, soft_wrap=True)
        _write(given.json, {"skipped": trouble})
        return 0
    names = given.only or list(LINES)
    device = torch.device("cuda:0" if asked == "cuda" else "cpu")  # not used here: a line may need all of its memory
    about, lines = _about(given, settings, device), list[Measured]()
    with tempfile.TemporaryDirectory(prefix="gpu-bench-", dir=given.folder) as made:
        folder = Path(made) if given.root is None else given.root
        bench = Bench(folder, device=device, data=given.data, rows=given.rows, epochs=given.epochs, settings=settings)
        for name in names:
            here = _measured(bench, name) if len(names) == 1 else _in_child(name, given, folder)
            lines += here
            for one in here:
                console.print(f"{one.what}: {_value(one)} {one.verdict} {one.note}", markup=False, highlight=False)
            _write(given.json, {"about": about, "lines": [_described(one) for one in lines]})  # what came so far
    console.print(_table(lines), *[f"{name}: {escape(str(value))}" for name, value in about.items()], sep="\n")
    return 1 if any(one.verdict == "missed" or one.note.startswith("failed") for one in lines) else 0


def _checked(given: argparse.Namespace) -> dict[str, str]:
    """Return the fields of recipes to change; end with one line about the first wrong option."""
    if unknown := sorted(set(given.only) - set(LINES)):
        raise SystemExit(f"error: --only must be one of {', '.join(LINES)}, got {unknown[0]!r}")
    for option, least in (("rows", 100), ("epochs", 1)):
        if getattr(given, option) < least:
            raise SystemExit(f"error: --{option} must be >= {least}, got {getattr(given, option)}")
    if given.rows > TRAIN_ROWS:
        raise SystemExit(f"error: --rows must be <= {TRAIN_ROWS}, got {given.rows}")
    found = sources.load("cifar10")
    if given.data is not None and not (given.data / found.files[0].name).is_file():
        raise SystemExit(
            f"error: --data must be a folder with {found.files[0].name} (from {found.mirrors[0]}), got {given.data}"
        )
    if wrong := [one for one in given.set if not one.partition("=")[2]]:
        raise SystemExit(f"error: --set must be FIELD=VALUE, got {wrong[0]!r}")
    settings = dict(one.partition("=")[::2] for one in given.set)
    if settings.get("device", "cuda") not in ("cpu", "cuda"):
        raise SystemExit(f"error: --set device must be cpu or cuda, got {settings['device']!r}")
    try:
        recipes.override(recipes.load("cifar10-vit"), settings)
    except ValueError as error:
        raise SystemExit(f"error: {error}") from None
    return settings


def _parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gpu",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = made.add_argument
    add("--data", metavar="DIR", type=Path, help="folder with cifar-10-binary.tar.gz (default: random images)")
    add("--json", metavar="FILE", type=Path, help="also write each line to FILE as soon as it is measured")
    add("--only", metavar="NAME", action="append", default=[], help=f"one of {', '.join(LINES)}; repeatable")
    add("--rows", metavar="N", type=int, default=TRAIN_ROWS, help=f"training images (default: {TRAIN_ROWS})")
    add("--epochs", metavar="N", type=int, default=5, help="timed epochs; their median counts (default: 5)")
    add(
        "--set",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="change a field of every recipe; device=cpu tries the benchmark without a GPU",
    )
    add("--folder", metavar="DIR", help="folder for temporary files (default: the system's)")
    add("--root", type=Path, help=argparse.SUPPRESS)  # the parent's folder, for a line in a process of its own
    return made


def _measured(bench: Bench, name: str) -> list[Measured]:
    """The lines of `name`, measured in this process; what was measured before an error is kept."""
    lines = list[Measured]()
    try:
        lines.extend(LINES[name](bench))
    except Exception as error:  # the other lines are worth having
        message = " ".join(f"{type(error).__name__}: {error}".split())
        lines.append(Measured(what=name, value=None, unit="", note=f"failed: {message[:500]}"))
    return lines


def _in_child(name: str, given: argparse.Namespace, folder: Path) -> list[Measured]:
    """The lines of `name`, measured in a process of its own: nothing of other lines is left in it, nor on the GPU."""
    out = folder / f"{name}.json"
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "--only", name, "--json", str(out), "--root", str(folder)]
    command += ["--rows", str(given.rows), "--epochs", str(given.epochs), *(f"--set={one}" for one in given.set)]
    command += ["--data", str(given.data.absolute())] if given.data else []
    try:
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=_LINE_LIMIT_S)
        problem = f"exit code {done.returncode}: {done.stderr.strip()[-500:]}"
    except subprocess.TimeoutExpired:
        problem = f"it took more than {_LINE_LIMIT_S} s"
    if not out.exists():
        return [Measured(what=name, value=None, unit="", note=f"failed: {problem}")]
    return [restored(one) for one in json.loads(out.read_text())["lines"]]


def restored(line: dict[str, Any]) -> Measured:
    """The line that a process of its own has written."""
    fields = {name: value for name, value in line.items() if name != "verdict"}
    return Measured(**fields | {"target": Target(**line["target"]) if line["target"] else None})


def _described(line: Measured) -> dict[str, Any]:
    return dataclasses.asdict(line) | {"verdict": line.verdict}


def _about(given: argparse.Namespace, settings: dict[str, str], device: torch.device) -> dict[str, Any]:
    """What has to be known to read the figures."""
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        gib = torch.cuda.get_device_properties(device).total_memory / 2**30
        name = f"{torch.cuda.get_device_name(device)}, {gib:.0f} GiB"
    return {
        "device": name,
        "CPUs": os.cpu_count(),
        "images": f"CIFAR-10 from {given.data}" if given.data else "random: accuracy and losses mean nothing",
        "rows": given.rows,
        "settings": settings,
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}",
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }


def _table(lines: Sequence[Measured]) -> Table:
    table = Table("what", "measured", "target", "", "note")
    for one in lines:
        shown = (one.what, _value(one), _target(one), one.verdict, one.note)
        table.add_row(*map(escape, shown), style="red" if one.verdict == "missed" else None)
    return table


def _value(line: Measured) -> str:
    return "" if line.value is None else f"{line.value:,.4g} {line.unit}".strip()


def _target(line: Measured) -> str:
    return f"{line.target} {line.unit}" if line.target else ""


def _write(file: Path | None, content: dict[str, Any]) -> None:
    if file is not None:
        file.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
