"""What the report says of a result that it was made from."""

import dataclasses
import shlex
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient

from flows.cli import preflight
from flows.cli.options import RunOptions
from storage import manifest, tables
from storage.decision import Decision
from storage.kinds import EVALUATION
from storage.uri import CheckpointURI
from tasks.learning import recipes
from tasks.orchestration import artifacts
from tasks.orchestration.summary import summarize
from tasks.planning import make_plan
from tasks.planning.plan import Plan
from tasks.report import Run, against_champion, gather, run_of
from tasks.report_page import render
from tasks.resources import machine
from tasks.stages import Predict
from tests import committed
from tests.report_page import results
from tests.report_page.results import commit_results
from tests.report_page.test_report_page import Page
from tests.runs import options_of
from tests.storage.results import promote


def run(plan: Plan, decision: Decision) -> Run:
    """The run of `plan`, as its report takes it."""
    return run_of(plan.evaluate.target, decision, plan.recipe, plan.registered_model, command=plan.command)


def test_lineage_has_dates_and_no_credentials_and_the_summary_shows_names_literally(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"name": "images.gz", "sha256": "0", "url": "ftp://user:secret@mirror.example/images.gz"}
    monkeypatch.setattr(results, "source_of", lambda *_: source)
    plan, decision = commit_results(tmp_path)
    decided = decision.decided
    assert decided is not None
    target = run(plan, decision).target
    assert run(plan, decision.model_copy(update={"decided": None, "author": None})).target == target
    decision = decision.model_copy(update={"reason": "new class <img src=x>, gone class a|b *c*"})
    data = gather(run(plan, decision))
    _, files, *made, report = data.lineage
    assert plan.download and (files.title, files.uri) == ("Downloaded files", plan.download.target)
    assert [step.facts[0][0] for step in made] == ["created (UTC)"] * len(made) != []
    assert report.facts[0] == ("created (UTC)", decided.strftime("%Y-%m-%d %H:%M"))
    assert (made[3].title, made[3].uri) == ("Predictions", plan.predict.target)
    for shown in (str(data.lineage), str(summarize(plan, plan.download.target, [], decision, target))):
        assert "ftp://***@mirror.example/images.gz" in shown and "secret" not in shown
    assert r"new class \<img src\=x\>\, gone class a\|b \*c\*." in "\n".join(artifacts._summary(data))


def test_the_command_of_a_run_on_some_cores_gives_the_same_uris(
    tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    request.addfinalizer(lambda: machine.choose(None))
    machine.choose(1)
    recipe = recipes.load("mnist-sample-resnet18")
    made = make_plan.make_plan(storage=str(tmp_path / "root"), recipe=recipe)
    assert made.train.cores == 1
    machine.choose(None)
    words = shlex.split(made.command)
    options = options_of(RunOptions, *words[2:], "--storage", str(tmp_path / "other"))
    again = preflight.checked(options)
    assert (words[-2:], again.train.target.name) == (["--cores", "1"], made.train.target.name)


def test_report_says_what_is_different_from_the_champion_before(tmp_path: Path) -> None:
    plan, decision = commit_results(tmp_path)
    assert against_champion(run(plan, decision)) == {}
    champion = CheckpointURI(plan.root.child("checkpoints/older-0123456789ab"))
    committed.commit(
        champion, "checkpoint", parents={"prepared": plan.preprocess.target}, recipe={"training": {"seed": 7}}
    )
    _predict_all_right(plan, champion)
    promote(plan.root, plan.registered_model, champion)
    decision = decision.model_copy(update={"number": 2})
    data = gather(run(plan, decision))
    against = against_champion(run(plan, decision))
    text = Page(render(dataclasses.replace(data, **against))).text
    assert f"different from the champion before, {champion} ," in text and "recipe: seed 7 -> 0" in text
    accuracy = manifest.load(plan.evaluate.target).statistics_of(EVALUATION).test_accuracy
    assert f"accuracy went from 1.0000 to {accuracy:.4f}: -{1 - accuracy:.4f}" in text
    assert f"Got worse: {round(400 * (1 - accuracy))}" in text and "Got better" not in text
    shutil.rmtree(champion)
    note = against_champion(run(plan, decision))["against_note"]
    assert note.startswith(f"The champion before cannot be compared: {champion} is not committed")


def _predict_all_right(plan: Plan, champion: CheckpointURI) -> None:
    """Commit the predictions of `champion` on the plan's test rows, each of them right."""
    uri = Predict(checkpoint=champion, dataset=plan.preprocess.target, split="test").target
    rows = tables.read_split(plan.predict.target, "test")
    rows = rows.set_column(2, "prediction", rows["label"])
    parents = {"checkpoint": champion, "dataset": plan.preprocess.target}
    committed.commit_rows(uri, "predictions", rows, parents=parents)


@pytest.mark.usefixtures("prefect_server")
def test_results_that_the_server_does_not_take_for_its_page_never_fail_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr(SyncPrefectClient, "create_artifact", fails)
    plan, decision = commit_results(tmp_path)
    data = gather(run(plan, decision))

    @flow
    def reports() -> str:
        artifacts.publish(data, run(plan, decision).target, registered_model="mnist")
        return "it goes on"

    assert reports() == "it goes on"
    assert "the results cannot be shown on the page of the run: connection refused" in caplog.text
