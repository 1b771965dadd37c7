"""The benchmarks: their ratios and targets, the hand-written script, and the lines of a GPU on the CPU."""

from pathlib import Path

import pytest

from benchmarks import gpu
from benchmarks.__main__ import markdown
from benchmarks.gpu import NEEDS_DATA, Measured
from benchmarks.lines import SAMPLE, Bench, ingest
from benchmarks.ratios import Ratio, in_turn
from tasks.resources import devices

SMALL = {"device": "cpu", "model": "small-cnn", "batch_size": "32", "epochs": "4", "precision": "fp32"}


def ratio(*pairs: tuple[float, float], at_most: float | None = None, unit: str = "s") -> Ratio:
    ours, other = zip(*pairs, strict=True)
    return Ratio(what="training", ours=ours, other=other, unit=unit, at_most=at_most)


def test_sides_take_turns_and_the_first_one_changes() -> None:
    work: list[str] = []

    def side(name: str) -> float:
        work.append(name)
        return float(len(work))

    assert in_turn(lambda: side("A"), lambda: side("B"), pairs=3) == ([1, 4, 5], [2, 3, 6])
    assert work == ["A", "B", "B", "A", "A", "B"]


@pytest.mark.parametrize(
    ("pairs", "verdict"),
    [
        ([(103, 100)], "met"),
        ([(104, 100), (104, 100)], "missed"),
        ([(104, 100)], "not judged"),
        ([(110, 100), (104, 100), (101, 100)], "within noise"),
        ([(106.1, 100), (106, 100), (105.9, 100)], "missed"),
        ([(102, 100), (101, 100), (100, 100), (99, 100), (500, 100)], "met"),
        ([(160, 100), (160, 100), (160, 100), (160, 100), (102, 100)], "missed"),
    ],
)
def test_a_target_is_missed_when_hardly_any_pair_meets_it(pairs: list[tuple[float, float]], verdict: str) -> None:
    assert ratio(*pairs, at_most=1.03).verdict == verdict


def test_the_table_holds_every_line_with_its_verdict() -> None:
    alone = Ratio(what="first step", ours=[18], unit="s", at_most=30)
    table = markdown([ratio((40, 100), (80, 100), at_most=1.03, unit="images/s"), alone], {"machine": "2 x a CPU"})
    assert "| training | 60 | 100 | images/s | 1.88 | 1.25 to 2.5 | <= 1.03 | missed |" in table, "of rates: times"
    assert "| first step | 18 |  | s | 18 | one pair | <= 30 | met |" in table and "- machine: 2 x a CPU\n" in table


def test_ingest_is_measured_on_the_sample(tmp_path: Path) -> None:
    (line,) = ingest(Bench(tmp_path, mirror=SAMPLE, quick=True))
    assert len(line.ours) == len(line.other) == 5 and min(line.ours) > 0


@pytest.mark.parametrize("name", gpu.LINES)
def test_every_line_of_a_gpu_can_be_measured(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "_VARIANTS", {"eager": {}})  # compiling takes a minute on a CPU
    lines = list(gpu.LINES[name](gpu.Bench(tmp_path, rows=300, epochs=1, settings=SMALL)))
    assert all(line.value is None or line.value > 0 for line in lines) and not any(line.is_missed for line in lines)
    assert [line.note for line in lines if line.value is None] == ([NEEDS_DATA] if name == "airbench" else [])


def test_a_line_of_a_gpu_says_whether_its_target_is_met() -> None:
    lines = [Measured(what="a", value=1.9, at_most=2.0), Measured(what="b", value=80, unit="%", at_least=90)]
    assert [str(line) for line in lines] == ["a: 1.9 (<= 2) met", "b: 80 % (>= 90) missed"]


@pytest.mark.skipif(devices.trouble() is None, reason="this machine has a GPU")
def test_without_a_gpu_it_says_so_and_measures_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu.main([]) == 0
    assert capsys.readouterr().out.startswith("skipped: no GPU to measure: torch ")
