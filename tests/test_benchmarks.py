"""The benchmarks: their ratios and targets, and the lines of a GPU on the CPU."""

import re
from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.__main__ import Ratio, markdown
from tasks.resources import devices

SMALL = {"device": "cpu", "model": "small-cnn", "batch_size": "32", "epochs": "4", "precision": "fp32"}


def test_the_table_holds_every_line_with_its_verdict() -> None:
    beside = Ratio(what="training", ours=(40, 80), other=(100, 80), unit="images/s", at_most=1.03)
    alone = Ratio(what="first step", ours=(18,), unit="s", at_most=30)
    table = markdown([beside, alone])
    assert "| training | 60 | 90 | images/s | 1.75 | 1 to 2.5 | <= 1.03 | not met |" in table, "of rates: times"
    assert "| first step | 18 |  | s | 18 | 18 to 18 | <= 30 | met |" in table


@pytest.mark.parametrize("name", gpu.LINES)
def test_every_line_of_a_gpu_can_be_measured(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "VARIANTS", {"as shipped": {}})  # compiling takes a minute on a CPU
    lines = list(gpu.LINES[name](gpu.Bench(tmp_path, rows=300, settings=SMALL)))
    assert lines and all(re.search(r": [\d.,]+ (s|rows/s)\b", line) for line in lines)


@pytest.mark.skipif(devices.trouble() is None, reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 0
    assert capsys.readouterr().out.startswith("skipped: no GPU to measure: torch ")
