"""The GPU benchmark on the CPU: its lines and targets; neither it nor the tests of this folder need Prefect."""

import dataclasses
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tasks.resources import devices
from tests.benchmarks import gpu, gpu_lines
from tests.benchmarks.bench import at_least, at_most
from tests.benchmarks.gpu_bench import TRAIN_ROWS, Bench
from tests.benchmarks.gpu_lines import LINES, Measured, union_s
from tests.runs import CHECKOUT

SMALL = {"device": "cpu", "model": "small-cnn", "batch_size": "32", "epochs": "4", "precision": "fp32"}
_WITHOUT_PREFECT = """
import sys
sys.modules |= dict.fromkeys(["prefect", "s3fs", "botocore"])  # an import of them fails
import runpy, pytest
if sys.argv[1] == "tests":
    raise SystemExit(pytest.main(["tests/gpu", "--collect-only", "-q", "-p", "no:cacheprovider"]))
sys.argv[1:] = ["--help"]
runpy.run_module("tests.benchmarks.gpu", run_name="__main__", alter_sys=True)
"""


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """A few random images, on the CPU."""
    folder = tmp_path_factory.mktemp("bench")
    return Bench(folder, device=torch.device("cpu"), rows=300, epochs=1, settings=SMALL)


@pytest.mark.parametrize("what", ["tests", "benchmark"])
def test_tests_and_benchmark_are_found_without_prefect(what: str) -> None:
    done = subprocess.run([sys.executable, "-c", _WITHOUT_PREFECT, what], cwd=CHECKOUT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert ("test_host_waits_for_the_device" if what == "tests" else "--only NAME") in done.stdout


@pytest.mark.parametrize("name", LINES)
def test_every_line_can_be_measured(bench: Bench, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = [variant for variant, how in gpu_lines.VARIANTS.items() if "compile" in how]
    for variant in compiled:  # takes a minute on a CPU
        monkeypatch.delitem(gpu_lines.VARIANTS, variant)
    found = list(LINES[name](bench))
    assert found and len({one.what for one in found}) == len(found)
    assert all(one.value is None or one.value > 0 for one in found)
    assert [one.note for one in found if one.value is None] == (
        ["needs --data: accuracy on random images means nothing"] if name == "airbench" else []
    )


def test_without_a_compiler_the_other_ways_to_launch_a_step_are_measured(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    found = {one.what.partition(": ")[2]: one for one in LINES["vit"](bench)}
    assert found.keys() == gpu_lines.VARIANTS.keys()
    unmeasured = {variant: one.note for variant, one in found.items() if one.verdict == "not measured"}
    says = "torch.compile needs a C compiler, and there is no gcc or clang"
    assert unmeasured == {"compile": says, "graph and compile": says}


def test_busy_time_is_the_union_of_what_ran_at_once() -> None:
    listed = [(10.0, 5.0), (0.0, 4.0), (12.0, 1.0), (14.0, 3.0)]
    assert union_s([{"ts": start, "dur": length} for start, length in listed]) == pytest.approx(11e-6)
    assert union_s([]) is None


def test_bars_are_those_of_a_gpu_with_all_rows_and_unchanged_recipes(tmp_path: Path) -> None:
    target, cuda = at_most(2.0), torch.device("cuda", 0)
    assert Bench(tmp_path, device=cuda).judged(target) == target
    assert Bench(tmp_path, device=torch.device("cpu")).judged(target) is None
    assert Bench(tmp_path, device=cuda, rows=TRAIN_ROWS - 1).judged(target) is None
    assert Bench(tmp_path, device=cuda, settings={"batch_size": "64"}).judged(target) is None


def lines(bench: Bench) -> Iterator[Measured]:
    yield Measured(what="fast", value=1.9, unit="s", target=at_most(2.0))
    yield Measured(what="idle", value=80.0, unit="%", target=at_least(90))
    raise RuntimeError("no more")


def test_every_line_says_whether_its_bar_is_met_and_what_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(gpu, "LINES", {"vit": lines})
    file = tmp_path / "out.json"
    assert gpu.main(["--set", "device=cpu", "--json", str(file)]) == 1
    found = json.loads(file.read_text())["lines"]
    assert [line["verdict"] for line in found] == ["met", "missed", "not measured"]
    assert found[2]["note"] == "failed: RuntimeError: no more"
    shown = capsys.readouterr().out
    assert "fast" in shown and ">= 90 %" in shown and "missed" in shown
    restored = [gpu.restored(line) for line in found]
    assert [dataclasses.asdict(line) for line in restored[:2]] == [dataclasses.asdict(one) for one in _first_two()]


def _first_two() -> list[Measured]:
    found = lines(None)  # type: ignore[arg-type]
    return [next(found), next(found)]


@pytest.mark.skipif(devices.trouble() is None, reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 0
    assert capsys.readouterr().out.startswith("skipped: no GPU to measure: torch ")


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (["--only", "vitt"], "--only must be one of jobs"),
        (["--rows", "60000"], "--rows must be <= 50000, got 60000"),
        (["--epochs", "0"], "--epochs must be >= 1, got 0"),
        (["--data", "nowhere"], "--data must be a folder with cifar-10-binary.tar.gz"),
        (["--set", "device=tpu"], "--set device must be cpu or cuda, got 'tpu'"),
        (["--set", "epoch"], "--set must be FIELD=VALUE, got 'epoch'"),
        (["--set", "epoch=3", "--set", "device=cpu"], "did you mean 'epochs'?"),
    ],
)
def test_wrong_options_are_named_before_anything_is_measured(option: list[str], says: str) -> None:
    with pytest.raises(SystemExit, match=r"^error: ") as error:
        gpu.main(option)
    assert says in str(error.value)
