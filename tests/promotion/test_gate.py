"""The gate with few test rows: significance, and the comparison with the largest class."""

import shlex
from pathlib import Path
from typing import Any

import pytest

from flows.__main__ import main
from storage import champions, registry
from storage.kinds import CheckpointURI
from tasks.learning import recipes
from tasks.learning.recipes import Gate
from tasks.promotion.gate import resolved, settings_of
from tests import committed
from tests.promotion.contest import ANY, CLASSES, GATE, Contest

AUTO = ANY | {"metric": "auto"}


def test_one_more_correct_row_of_sixty_is_not_significant(contest: Contest, capsys: pytest.CaptureFixture[str]) -> None:
    champion = contest.model("champion", 0, 1, 2)
    assert contest.decide(champion).promoted
    decision = contest.decide(contest.model("luckier", 3, 4))
    assert (decision.promoted, decision.champion) == (False, champion)
    assert decision.reason == (
        "test accuracy 0.9667 is above the champion's 0.9500 on the same rows, but not significantly (p = 1, required: "
        "at most 0.05)"
    )
    difference = decision.difference
    assert difference
    assert (difference.only_challenger, difference.only_rival, difference.num_rows) == (3, 2, 60)
    assert difference.lower is not None and difference.upper is not None
    assert difference.lower < 0 < difference.difference < difference.upper
    assert registry.history(contest.plan.root, "photos")[-1] == decision
    main(["history", "photos", "--storage", contest.plan.root])
    assert f"        compared with the champion: {difference}\n" in capsys.readouterr().out


@pytest.mark.parametrize(("wrong", "promoted"), [(1, True), (2, False)])
def test_a_challenger_is_promoted_only_if_it_is_significantly_better(
    contest: Contest, wrong: int, promoted: bool
) -> None:
    contest.decide(contest.model("champion", *range(7)))
    assert contest.decide(contest.model("challenger", *range(wrong))).promoted is promoted


def test_each_further_model_beside_one_champion_needs_a_smaller_p_value(contest: Contest) -> None:
    contest.decide(contest.model("champion", *range(7)))
    noise = [contest.decide(contest.model(f"noise-{number}", *range(2))) for number in range(2)]
    assert [decision.num_compared_before for decision in noise] == [0, 1]
    decision = contest.decide(contest.model("challenger", 0))  # 6 to 0 rows: p = 0.031, enough for a first challenger
    assert not decision.promoted and decision.num_compared_before == 2
    assert decision.reason.endswith(
        "(p = 0.031, required: at most 0.017 = 0.05 / 3, the models compared with this champion so far)"
    )
    again = contest.decide(contest.model("noise-0", *range(2)))
    assert again.num_compared_before == 2, "a model is not counted twice"
    root = contest.plan.root
    assert contest.decide(contest.model("better"), ANY).promoted and champions.rollback(root, "photos")
    assert contest.decide(contest.model("later", 0)).num_compared_before == 4, "nor forgotten once it is back"


SAME, OTHERS, MORE, FEWER = range(100, 105), range(200, 205), range(200, 206), range(200, 203)
"""Rows that the challenger learns from; the champion has the first."""


@pytest.mark.parametrize(
    ("gate", "recipe", "data", "promoted", "why"),
    [
        ({"max_p_value": None}, "usual", MORE, True, "(enough on more or changed data)"),
        ({"max_p_value": None}, "other", MORE, True, "(enough on more or changed data)"),
        ({"max_p_value": None}, "usual", OTHERS, True, "(enough on more or changed data)"),
        (
            {"max_p_value": None},
            "other",
            OTHERS,
            False,
            "at most 0.05, as it learned from 5 rows, the champion from 5)",
        ),
        ({"max_p_value": None}, "usual", SAME, False, "at most 0.05, as it learned from 5 rows, the champion from 5)"),
        ({"max_p_value": None}, "usual", FEWER, False, "at most 0.05, as it learned from 3 rows, the champion from 5)"),
        ({"max_p_value": 0.05}, "usual", MORE, False, "(p = 0.5, required: at most 0.05)"),
        ({}, "other", SAME, True, "is at least the champion's 0.9667 on the same rows"),
    ],
)
def test_a_model_of_more_data_must_not_be_worse_and_any_other_significantly_better_unless_a_setting_says_otherwise(
    contest: Contest, gate: dict[str, Any], recipe: str, data: range, promoted: bool, why: str
) -> None:
    contest.decide(contest.model("champion", 0, 1, data=contest.dataset("first", SAME)))
    challenger = contest.model("challenger", recipe=recipe, data=contest.dataset("second", data))
    decision = contest.decide(challenger, ANY | gate)
    assert decision.promoted is promoted and why in decision.reason


def test_a_model_without_some_classes_of_the_champion_is_rejected_unless_they_may_go(contest: Contest) -> None:
    contest.decide(contest.model("champion", *range(10), knows=("ant", *CLASSES, "owl")))
    challenger = contest.model("challenger")
    decision = contest.decide(challenger)
    assert not decision.promoted
    assert decision.reason == (
        "classes of the champion are gone: ant, owl; restore their images, or allow it with --set classes_may_go=true"
    )
    assert contest.decide(challenger, GATE | {"classes_may_go": True}).promoted


def test_a_champion_that_is_judged_again_stays_and_one_with_own_code_says_what_it_needs(contest: Contest) -> None:
    champion = contest.model("champion", network="my_recipe.py:network@0123456789ab")
    needs = "; from now on runs and predictions need the unchanged my_recipe.py in PIPELINE_USER_CODE"
    assert contest.decide(champion).reason.endswith(needs)
    again = contest.decide(champion, ANY)
    assert (again.verdict, again.promoted, again.champion) == ("unchanged", False, champion)
    assert again.reason == "it is already the champion, with test accuracy 1.0000"


def test_the_command_in_a_reason_promotes_the_model_when_it_is_pasted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIPELINE_STORAGE", f"{tmp_path}/elsewhere")
    contest = Contest(tmp_path / "my models")
    checkpoint = contest.model("challenger")
    decision = contest.decide(checkpoint, judge_only=True)
    command = decision.reason.partition("data-to-model ")[2]
    assert not decision.promoted and main(shlex.split(command)) == 0
    assert registry.champion(contest.plan.root, "photos") == checkpoint


def test_rows_are_compared_by_the_names_of_their_classes(contest: Contest) -> None:
    contest.decide(contest.model("champion", 0, 1, 59))
    difference = contest.decide(contest.model("challenger", 1, knows=("dog", "owl", "cat"))).difference
    assert difference and (difference.only_challenger, difference.only_rival) == (2, 0)


BALANCED = GATE | {"metric": "balanced_accuracy"}
ALWAYS_CAT = range(40, 60)


@pytest.mark.parametrize(
    ("metric", "is_promoted", "reason"),
    [
        ("accuracy", False, "test accuracy 0.6833 is below the champion's 0.7333 on the same rows"),
        ("balanced_accuracy", True, "balanced accuracy 0.7625 is at least the champion's 0.6000 on the same rows"),
    ],
)
def test_the_gates_metric_decides_between_two_models_that_are_good_at_different_classes(
    contest: Contest, metric: str, is_promoted: bool, reason: str
) -> None:
    champion = contest.model("good-at-the-large-class", *range(44, 60))  # all cats, 4 of 20 dogs: 0.7333, balanced 0.6
    challenger = contest.model("good-at-the-rare-class", *range(19))  # 21 of 40 cats, all dogs: 0.6833, balanced 0.7625
    assert contest.decide(champion, ANY | {"metric": metric}).promoted
    decision = contest.decide(challenger, ANY | {"metric": metric})
    assert decision.promoted is is_promoted and decision.reason.startswith(reason)
    assert decision.difference and decision.gate["metric"] == decision.difference.metric == metric
    assert decision.scores["challenger"] == pytest.approx(
        {"test_accuracy": 41 / 60, "balanced_accuracy": 0.7625, "macro_f1": (42 / 61 + 40 / 59) / 2}
    )


def test_balanced_accuracy_is_tested_exactly_and_three_rows_of_a_rare_class_are_not_enough(contest: Contest) -> None:
    contest.decide(contest.model("champion", *range(7), 50, 51, 52), BALANCED)
    luckier = contest.decide(contest.model("luckier", *range(7)), BALANCED)
    assert not luckier.promoted and luckier.difference and luckier.difference.p_value == 0.25
    assert "difference in balanced accuracy +0.0750 (exact test p = 0.25); of 60 rows, 3" in str(luckier.difference)
    better = contest.decide(contest.model("better"), BALANCED)
    assert better.promoted and better.difference and better.difference.p_value < 0.025
    assert f"p = {better.difference.p_value:.2g}, required: at most 0.025 = 0.05 / 2" in better.reason
    assert contest.decide(contest.model("next", 0), BALANCED).num_compared_before == 0, "since the promotion"


@pytest.mark.parametrize(
    ("metric", "metric_name", "always"),
    [
        ("accuracy", "test accuracy", "0.6667"),
        ("balanced_accuracy", "balanced accuracy", "0.5000"),
        ("macro_f1", "macro F1", "0.4000"),
    ],
)
def test_what_is_not_better_than_the_largest_class_is_not_promoted_even_where_there_is_no_champion(
    contest: Contest, metric: str, metric_name: str, always: str
) -> None:
    beaten = f"{always}, the score of always predicting 'cat', the largest class of the test rows"
    decision = contest.decide(contest.model("always-cat", *ALWAYS_CAT), GATE | {"metric": metric})
    assert (decision.promoted, decision.champion) == (False, None)
    assert decision.reason == f"{metric_name} {always} is not above {beaten}"
    decision = contest.decide(contest.model("one-dog", *ALWAYS_CAT[1:]), GATE | {"metric": metric})
    assert not decision.promoted
    assert f" is above {beaten}, but may be chance (p = 0." in decision.reason
    decision = contest.decide(contest.model("five-dogs", *ALWAYS_CAT[5:]), GATE | {"metric": metric})
    assert decision.promoted and decision.reason.endswith(f" is above {beaten}; there was no champion")


@pytest.mark.parametrize(("class_weights", "metric"), [("balanced", "balanced_accuracy"), ("none", "accuracy")])
def test_a_model_is_compared_as_it_was_trained(contest: Contest, class_weights: str, metric: str) -> None:
    checkpoint = CheckpointURI(contest.plan.root.child("checkpoints/trained-0123456789ab"))
    committed.commit(checkpoint, "checkpoint", resolved={"class_weights": class_weights})
    assert resolved(Gate(**AUTO), checkpoint) == Gate(**ANY | {"metric": metric})
    assert resolved(Gate(**ANY), checkpoint) == Gate(**ANY)


@pytest.mark.parametrize(
    ("name", "settings", "expected"),
    [
        ("mnist-resnet18", {}, AUTO | {"minimum": 0.98, "max_p_value": None}),
        ("mnist-resnet18", {"max_p_value": 0.01}, AUTO | {"minimum": 0.98, "max_p_value": 0.01}),
        ("images-resnet18", {}, GATE | {"metric": "auto", "max_p_value": None}),
        ("images-resnet18", ["max_p_value=0.05"], GATE | {"metric": "auto"}),
        ("images-resnet18", ["max_p_value=0"], AUTO | {"max_p_value": ...}),
        ("images-resnet18", {"tolerance": 0.02}, AUTO | {"tolerance": 0.02, "max_p_value": ...}),
    ],
)
def test_significance_is_a_setting_unless_a_tolerance_is_given(
    name: str, settings: dict[str, float] | list[str], expected: dict[str, Any]
) -> None:
    recipe = recipes.override(recipes.load(name), settings)
    values = {name: value for name, value in expected.items() if value is not ...} | {"classes_may_go": False}
    assert settings_of(recipe.gate, judge_only=False) == values
