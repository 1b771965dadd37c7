import pytest

from tests.benchmarks.__main__ import markdown
from tests.benchmarks.ratios import Ratio, Target, in_turn


def ratio(*pairs: tuple[float, float], target: Target | None = None) -> Ratio:
    ours, other = zip(*pairs, strict=True)
    return Ratio(number=4, what="training", ours=ours, other=other, unit="images/s", target=target)


def test_arms_take_turns_and_the_first_one_changes() -> None:
    work: list[str] = []

    def arm(name: str) -> float:
        work.append(name)
        return float(len(work))

    assert in_turn(lambda: arm("A"), lambda: arm("B"), pairs=3) == ([1, 4, 5], [2, 3, 6])
    assert work == ["A", "B", "B", "A", "A", "B"]


def test_one_disturbed_pair_of_five_does_not_move_the_ratio() -> None:
    measured = ratio((98, 100), (99, 100), (100, 100), (101, 100), (20, 100), target=Target(value=0.97, at_least=True))
    assert measured.median == pytest.approx(0.99)
    assert measured.verdict == "met"


@pytest.mark.parametrize(
    ("pairs", "target", "verdict"),
    [
        ([(97, 100)], Target(value=0.97, at_least=True), "met"),
        ([(96, 100), (96, 100)], Target(value=0.97, at_least=True), "missed"),
        ([(96, 100)], Target(value=0.97, at_least=True), "not judged"),
        ([(90, 100), (96, 100), (99, 100)], Target(value=0.97, at_least=True), "within noise"),
        ([(93.9, 100), (94, 100), (94.1, 100)], Target(value=0.97, at_least=True), "missed"),
        ([(60, 100), (60, 100), (60, 100), (60, 100), (98, 100)], Target(value=0.97, at_least=True), "missed"),
        ([(150, 100)], Target(value=1.5, at_least=False), "met"),
        ([(151, 100), (151, 100)], Target(value=1.5, at_least=False), "missed"),
    ],
)
def test_a_target_is_missed_when_hardly_any_pair_meets_it(
    pairs: list[tuple[float, float]], target: Target, verdict: str
) -> None:
    assert ratio(*pairs, target=target).verdict == verdict


def test_the_table_holds_every_line_with_its_verdict() -> None:
    measured = ratio((40, 100), (60, 100), target=Target(value=0.97, at_least=True))
    table = markdown([measured, ratio((50, 100))], {"machine": "2 x a CPU"})
    assert "| 4 | training | 50 | 100 | images/s | 0.5 | 0.4 to 0.6 | >= 0.97 | missed |" in table
    assert "| 0.5 | one pair |" in table and "- machine: 2 x a CPU\n" in table
