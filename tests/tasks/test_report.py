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
from flows.cli.commands import RunOptions
from storage import files, manifest
from storage.kinds import RAW
from tasks.learning import recipes
from tasks.orchestration import artifacts
from tasks.orchestration.summary import summarize
from tasks.planning import make_plan
from tasks.report import against_champion, gather
from tasks.resources import machine
from tests.finished import Finished
from tests.report_page.test_report_page import Page
from tests.runs import options_of


def test_lineage_has_dates_and_no_credentials_and_the_summary_shows_names_literally(
    finished: Finished, tmp_path: Path
) -> None:
    copy = finished.copy_to(tmp_path / "root")
    plan, decision = copy.plan, copy.decision
    recorded = manifest.load(plan.preprocess.raw)
    statistics = recorded.statistics_of(RAW)
    sources = (statistics.sources[0].model_copy(update={"url": "ftp://user:secret@mirror.example/images.gz"}),)
    secret = recorded.model_copy(update={"statistics": statistics.model_copy(update={"sources": sources})})
    files.put(plan.preprocess.raw.child(manifest.NAME), secret.signed().to_json())
    assert decision.decided
    undecided = decision.model_copy(update={"decided": None, "author": None})
    target = copy.run.stage.target
    assert dataclasses.replace(copy.run, decision=undecided).stage.target == target == copy.report
    decision = decision.model_copy(update={"reason": "new class <img src=x>, gone class a|b *c*"})
    data = gather(dataclasses.replace(copy.run, decision=decision))
    _, *made, report = data.lineage
    assert [step.facts[0][0] for step in made] == ["created (UTC)"] * 5
    assert report.facts[0] == ("created (UTC)", f"{decision.decided:%Y-%m-%d %H:%M}")
    assert (made[3].title, made[3].uri) == ("Predictions", plan.predict.target)
    for shown in (str(data.lineage), str(summarize(plan, None, [], decision, target))):
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


def test_report_says_what_is_different_from_the_champion_before(finished: Finished, tmp_path: Path) -> None:
    text = Page(files.read(finished.report.child("index.html")).decode()).text
    champion = finished.champion.train.target
    assert f"different from the champion before, {champion} ," in text and "recipe: epochs 8 -> 2" in text
    of_both = finished.data.against["test_rows"]["metrics"]["test_accuracy"] if finished.data.against else {}
    assert f"accuracy went from 1.0000 to {of_both['b']:.4f}: {of_both['b'] - 1:.4f}" in text
    assert "Got worse: " in text and "Got better" not in text
    copy = finished.copy_to(tmp_path / "root")
    shutil.rmtree(copy.champion.train.target)
    note = against_champion(copy.run)["against_note"]
    assert note.startswith(f"The champion before cannot be compared: {copy.champion.train.target} is not committed")


@pytest.mark.usefixtures("prefect_server")
def test_results_that_the_server_does_not_take_for_its_page_never_fail_the_report(
    finished: Finished, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr(SyncPrefectClient, "create_artifact", fails)

    @flow
    def reports() -> str:
        artifacts.publish(finished.data, finished.report, registered_model="mnist")
        return "it goes on"

    assert reports() == "it goes on"
    assert "the results cannot be shown on the page of the run: connection refused" in caplog.text
