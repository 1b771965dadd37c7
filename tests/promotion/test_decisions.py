"""Decisions: by whom they were made, which are still valid, and what a person or a deleted checkpoint changes."""

import datetime

import pytest

from storage import champions, files, registry
from tests import committed
from tests.promotion.contest import ANY, Contest

TOLERANT = ANY | {"minimum": 0.9, "tolerance": 0.02}
"""A gate that lets a model have one row of sixty less."""


@pytest.mark.parametrize(
    ("runtime", "author"),
    [
        ({}, "ada"),
        (
            {"FLOW_RUN__ID": "1", "FLOW_RUN__NAME": "vit epochs=3", "FLOW_RUN__FLOW_NAME": "cifar10"}
            | {"DEPLOYMENT__ID": "2", "DEPLOYMENT__NAME": "train"},
            "deployment cifar10/train, run vit epochs=3",
        ),
    ],
    ids=["no run", "deployment"],
)
def test_a_decision_says_when_and_by_whom_it_was_made(
    contest: Contest, monkeypatch: pytest.MonkeyPatch, runtime: dict[str, str], author: str
) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    for name, value in runtime.items():
        monkeypatch.setenv(f"PREFECT__RUNTIME__{name}", value)
    before = datetime.datetime.now(datetime.UTC)
    decision = contest.promote(contest.model("first"))
    assert decision.decided and before <= decision.decided <= datetime.datetime.now(datetime.UTC)
    assert decision.author == author and contest.history() == [decision]


@pytest.mark.parametrize(("wrong", "promoted"), [(3, True), (4, True), (5, False)])
def test_a_challenger_may_lie_below_the_champion_by_no_more_than_the_tolerance(
    contest: Contest, wrong: int, promoted: bool
) -> None:
    poor = contest.decide(contest.model("poor", *range(7)), TOLERANT)
    assert not poor.promoted and "below the minimum" in poor.reason
    champion = contest.model("champion", 20, 21, 22)
    assert contest.decide(champion, TOLERANT).promoted
    decision = contest.decide(contest.model("challenger", *range(wrong)), TOLERANT)
    assert decision.promoted is promoted
    assert decision.champion == (decision.challenger if promoted else champion)


def test_a_champion_without_a_score_keeps_its_place_and_the_decision_does_not_stand(contest: Contest) -> None:
    champion, challenger = contest.model("champion", *range(10)), contest.model("challenger")
    contest.decide(champion)
    decision = contest.decide(challenger, rival="a worker was lost")
    assert (decision.champion, decision.difference) == (champion, None)
    assert "the champion cannot be scored on the same rows: a worker was lost; run again" in decision.reason
    assert contest.valid(challenger) is None


def test_what_a_person_rolled_back_is_not_promoted_under_another_name(contest: Contest) -> None:
    root = contest.plan.root
    first, second = contest.model("first", 0, 1, 2), contest.model("second")
    decision = contest.decide(first, ANY)
    assert contest.valid(first, ANY) == decision
    contest.decide(second, ANY)
    assert contest.valid(first, ANY) is None, "another champion took charge"
    champions.rollback(root, "photos")
    assert "this model was rolled back" in contest.decide(second, ANY).reason
    files.remove(second)  # its weights are known all the same
    twin = contest.model("twin", weights="second")
    decision = contest.decide(twin, ANY)
    assert (decision.promoted, decision.champion) == (False, first)
    assert "this model was rolled back" in decision.reason
    assert contest.decide(contest.model("second", weights="others"), ANY).promoted, "only the name is the same"
    champions.promote(root, twin, name="photos")
    again = contest.decide(contest.model("again", weights="second"), ANY)
    assert "rolled back" not in again.reason, "a person promoted this model again"


def test_a_run_that_only_judges_records_its_judgment_and_leaves_the_champion(contest: Contest) -> None:
    champion, better = contest.model("champion", 0, 1), contest.model("better", 0)
    contest.decide(champion, ANY)
    judged = contest.decide(better, ANY, judge_only=True)
    assert (judged.promoted, judged.champion) == (False, champion)
    assert "is at least the champion's 0.9667 on the same rows; it was only judged" in judged.reason
    assert contest.valid(better, ANY, judge_only=True) == judged and contest.valid(better, ANY) is None
    promoted = contest.decide(better, ANY)
    assert promoted.promoted and contest.valid(better, ANY, judge_only=True) == promoted


def test_a_checkpoint_that_was_removed_is_not_left_in_charge_and_is_judged_again_once_it_is_there(
    contest: Contest,
) -> None:
    removed = contest.model("removed")
    files.remove(removed)
    with pytest.raises(FileNotFoundError, match="was deleted before it could be promoted; run again"):
        contest.promote(removed)
    assert registry.champion(contest.plan.root, "photos") is None
    assert contest.valid(removed) is None
    committed.commit(removed, "checkpoint", parents={"prepared": contest.plan.preprocess.target})
    assert contest.promote(removed).promoted
