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

from tasks.learning import recipes, sources
from tasks.resources import devices
from tests.benchmarks.gpu_bench import TRAIN_ROWS, Bench
from tests.benchmarks.gpu_lines import LINES, Measured
from tests.runs import CHECKOUT

_EPILOG = """\
The targets are for one H100 or H200, on which all lines should take about ten minutes. Use an otherwise idle GPU. Each
line is measured in a separate process. Targets apply only on a GPU, with all rows and without --set. The exit code is 1
if a target is missed or a line failed, else 0, also if there is no GPU, which one line then says."""
_LINE_LIMIT_S = 600


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print all lines; return 0 if no target is missed and no line failed."""
    options = parser().parse_args(arguments)
    settings = _checked(options)
    device_type = settings.get("device", "cuda")
    if device_type == "cuda" and (trouble := devices.trouble()):
        print(f"skipped: no GPU to measure: {trouble}")
        _write(options.json, {"skipped": trouble})
        return 0
    names = options.only or list(LINES)
    device = torch.device("cuda:0" if device_type == "cuda" else "cpu")  # not used here: a line may need its memory
    facts, lines = _facts(options, settings, device), list[Measured]()
    print(*(f"{name}: {value}" for name, value in facts.items()), sep="\n", flush=True)
    with tempfile.TemporaryDirectory(prefix="gpu-bench-", dir=options.folder) as temporary:
        folder = options.root or Path(temporary)
        bench = Bench(
            folder, device=device, data=options.data, rows=options.rows, epochs=options.epochs, settings=settings
        )
        for name in names:
            measured = _measured(bench, name) if len(names) == 1 else _in_child(name, options, folder)
            print(*measured, sep="\n", flush=True)
            lines += measured
            _write(options.json, {"about": facts, "lines": [dataclasses.asdict(line) for line in lines]})
    return 1 if any(line.verdict in ("missed", "failed") for line in lines) else 0


def _checked(options: argparse.Namespace) -> dict[str, str]:
    """Return the fields of recipes to change; end with one line about the first wrong option."""
    if not (100 <= options.rows <= TRAIN_ROWS and options.epochs >= 1):
        raise SystemExit(f"error: --rows must be 100 to {TRAIN_ROWS} and --epochs >= 1")
    name = sources.load("cifar10").files[0].name
    if options.data is not None and not (options.data / name).is_file():
        raise SystemExit(f"error: --data must be a folder with {name}, got {options.data}")
    settings = dict(setting.partition("=")[::2] for setting in options.set)
    try:
        recipes.override(recipes.load("cifar10-vit"), settings)
    except ValueError as error:
        raise SystemExit(f"error: --set: {error}") from None
    return settings


def parser() -> argparse.ArgumentParser:
    """The options."""
    options = argparse.ArgumentParser(
        prog="python -m tests.benchmarks.gpu",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = options.add_argument
    add("--data", metavar="DIR", type=Path, help="folder with cifar-10-binary.tar.gz (default: random images)")
    add("--json", metavar="FILE", type=Path, help="also write each line to FILE as soon as it is measured")
    add("--only", choices=LINES, action="append", default=[], help="only this line; repeatable")
    add("--rows", metavar="N", type=int, default=TRAIN_ROWS, help=f"training images (default: {TRAIN_ROWS})")
    add("--epochs", metavar="N", type=int, default=5, help="timed epochs; their median counts (default: 5)")
    tries = "change a field of every recipe; device=cpu tries the benchmark without a GPU"
    add("--set", metavar="FIELD=VALUE", action="append", default=[], help=tries)
    add("--folder", metavar="DIR", help="folder for temporary files (default: the system's)")
    add("--root", type=Path, help=argparse.SUPPRESS)  # the parent's folder, for a line in a process of its own
    return options


def _measured(bench: Bench, name: str) -> list[Measured]:
    """The lines of `name`, measured in this process; what was measured before an error is kept."""
    lines = list[Measured]()
    try:
        lines.extend(LINES[name](bench))
    except Exception as error:  # the other lines are worth having
        lines.append(_failed(name, f"{type(error).__name__}: {error}"))
    return lines


def _in_child(name: str, options: argparse.Namespace, folder: Path) -> list[Measured]:
    """The lines of `name`, measured in a process of its own: nothing of other lines is left in it, nor on the GPU."""
    out = folder / f"{name}.json"
    command = [sys.executable, "-m", "tests.benchmarks.gpu", "--only", name, "--json", str(out), "--root", str(folder)]
    command += ["--rows", str(options.rows), "--epochs", str(options.epochs), *(f"--set={one}" for one in options.set)]
    command += ["--data", str(options.data.absolute())] if options.data else []
    try:
        child = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=_LINE_LIMIT_S)
        problem = f"exit code {child.returncode}: {child.stderr.strip()[-500:]}"
    except subprocess.TimeoutExpired:
        problem = f"it took more than {_LINE_LIMIT_S} s"
    if not out.exists():
        return [_failed(name, problem)]
    return [Measured(**line) for line in json.loads(out.read_text())["lines"]]


def _failed(name: str, message: str) -> Measured:
    return Measured(what=name, verdict="failed", note=" ".join(message.split())[:500])


def _facts(options: argparse.Namespace, settings: dict[str, str], device: torch.device) -> dict[str, Any]:
    """What has to be known to read the figures."""
    name = platform.processor() or platform.machine()
    if device.type == "cuda":
        gib = torch.cuda.get_device_properties(device).total_memory / 2**30
        name = f"{torch.cuda.get_device_name(device)}, {gib:.0f} GiB"
    return {
        "device": name,
        "CPUs": os.cpu_count(),
        "images": f"CIFAR-10 from {options.data}" if options.data else "random: accuracy and losses mean nothing",
        "rows": options.rows,
        "settings": settings,
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}",
        "python": platform.python_version(),
        "load": os.getloadavg(),
    }


def _write(file: Path | None, content: dict[str, Any]) -> None:
    if file is not None:
        file.write_text(json.dumps(content, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    raise SystemExit(main())
