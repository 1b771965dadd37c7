import pytest

from tests.benchmarks.__main__ import markdown
from tests.benchmarks.ratios import Ratio, Target, at_most, in_turn


def ratio(*pairs: tuple[float, float], target: Target | None = None, unit: str = "s") -> Ratio:
    ours, other = zip(*pairs, strict=True)
    return Ratio(number=4, what="training", ours=ours, other=other, unit=unit, target=target)


def test_arms_take_turns_and_the_first_one_changes() -> None:
    work: list[str] = []

    def arm(name: str) -> float:
        work.append(name)
        return float(len(work))

    assert in_turn(lambda: arm("A"), lambda: arm("B"), pairs=3) == ([1, 4, 5], [2, 3, 6])
    assert work == ["A", "B", "B", "A", "A", "B"]


def test_one_disturbed_pair_of_five_does_not_move_the_ratio() -> None:
    measured = ratio((102, 100), (101, 100), (100, 100), (99, 100), (500, 100), target=at_most(1.03))
    assert measured.median == pytest.approx(1.01)
    assert measured.verdict == "met"


@pytest.mark.parametrize(
    ("pairs", "target", "verdict"),
    [
        ([(103, 100)], at_most(1.03), "met"),
        ([(104, 100), (104, 100)], at_most(1.03), "missed"),
        ([(104, 100)], at_most(1.03), "not judged"),
        ([(110, 100), (104, 100), (101, 100)], at_most(1.03), "within noise"),
        ([(106.1, 100), (106, 100), (105.9, 100)], at_most(1.03), "missed"),
        ([(160, 100), (160, 100), (160, 100), (160, 100), (102, 100)], at_most(1.03), "missed"),
    ],
)
def test_a_target_is_missed_when_hardly_any_pair_meets_it(
    pairs: list[tuple[float, float]], target: Target, verdict: str
) -> None:
    assert ratio(*pairs, target=target).verdict == verdict


def test_the_table_holds_every_line_with_its_verdict() -> None:
    measured = ratio((40, 100), (80, 100), target=at_most(1.03), unit="images/s")
    table = markdown([measured, ratio((50, 100))], {"machine": "2 x a CPU"})
    assert "| 4 | training | 60 | 100 | images/s | 1.88 | 1.25 to 2.5 | <= 1.03 | missed |" in table, "of rates: times"
    assert "| 0.5 | one pair |" in table and "- machine: 2 x a CPU\n" in table
