"""The GPU benchmark on the CPU: each of its lines, its targets, and what it does without a GPU."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tasks.resources import devices
from tests.benchmarks import gpu, gpu_lines
from tests.benchmarks.gpu_bench import Bench
from tests.benchmarks.gpu_lines import LINES, NEEDS_DATA, Measured, judged
from tests.benchmarks.ratios import at_least, at_most
from tests.runs import CHECKOUT

SMALL = {"device": "cpu", "model": "small-cnn", "batch_size": "32", "epochs": "4", "precision": "fp32"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A few random images, on the CPU."""
    folder = tmp_path_factory.mktemp("bench")
    return Bench(folder, device=torch.device("cpu"), rows=300, epochs=1, settings=SMALL)


@pytest.mark.parametrize("name", LINES)
def test_every_line_can_be_measured(bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variant in ("compile", "graph and compile"):  # takes a minute on a CPU
        monkeypatch.delitem(gpu_lines.VARIANTS, variant)
    lines = list(LINES[name](bench))
    assert lines and len({line.what for line in lines}) == len(lines)
    assert all(line.value is None or line.value > 0 for line in lines)
    assert [line.note for line in lines if line.value is None] == ([NEEDS_DATA] if name == "airbench" else [])


def test_jobs_are_measured_without_prefect_and_ray() -> None:
    program = (
        "import sys; from tests.benchmarks import gpu; code = gpu.main(sys.argv[1:]); "
        "print({'prefect', 'ray'} & set(sys.modules)); sys.exit(code)"
    )
    options = ["--only", "prediction", "--rows", "300", *(f"--set={name}={value}" for name, value in SMALL.items())]
    command = [sys.executable, "-c", program, *options]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "set()"), done.stdout + done.stderr


def test_every_line_says_whether_its_target_is_met_and_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    on_gpu = Bench(tmp_path, device=torch.device("cuda", 0))

    def lines(bench: Bench) -> Iterator[Measured]:
        yield judged(bench, at_most(2.0), what="on a CPU", value=1.9, unit="s")
        yield judged(on_gpu, at_most(2.0), what="fast", value=1.9, unit="s")
        yield judged(on_gpu, at_least(90), what="idle", value=80.0, unit="%")
        raise RuntimeError("no more")

    monkeypatch.setattr(gpu, "LINES", {"vit": lines})
    file = tmp_path / "out.json"
    assert gpu.main(["--set", "device=cpu", "--json", str(file)]) == 1
    measured = [Measured(**line) for line in json.loads(file.read_text())["lines"]]
    assert [line.verdict for line in measured] == ["", "met", "missed", "failed"]
    assert measured[3].note == "RuntimeError: no more"
    assert "idle: 80 % (>= 90) missed" in capsys.readouterr().out


@pytest.mark.skipif(devices.trouble() is None, reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 0
    assert capsys.readouterr().out.startswith("skipped: no GPU to measure: torch ")


@pytest.mark.parametrize(
    ("option", "says"),
    [(["--rows", "60000"], "--rows must be 100 to 50000"), (["--set", "epoch=3"], "did you mean 'epochs'?")],
)
def test_wrong_options_are_named_before_anything_is_measured(option: list[str], says: str) -> None:
    with pytest.raises(SystemExit, match=r"^error: ") as error:
        gpu.main(option)
    assert says in str(error.value)
