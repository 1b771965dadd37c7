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
from flows.cli.start import choose_resources
from storage import commits, manifest, registry, tables
from storage.decision import Decision
from storage.uri import URI, CheckpointURI, DatasetURI
from tasks.learning import recipes
from tasks.orchestration import artifacts
from tasks.orchestration.summary import summarize
from tasks.planning import make_plan
from tasks.planning.plan import Plan
from tasks.planning.result_uris import predictions_of, report_of
from tasks.report import _facts, against_champion, gather
from tasks.report_page import render
from tasks.resources import machine
from tests.report_page import results
from tests.report_page.results import commit_results
from tests.report_page.test_report_page import Page
from tests.runs import options_of


def test_result_of_before_dates_has_no_such_fact(tmp_path: Path) -> None:
    uri = DatasetURI(f"{tmp_path}/prepared-0123456789ab")
    made = commits.commit(uri, kind="prepared", parents={}, parameters={}, listed=[])
    assert dict(_facts(uri, made.model_copy(update={"created": None}))) == {}


def test_report_of_one_decision_is_one_whenever_and_by_whomever_it_was_made(tmp_path: Path) -> None:
    plan, decision = commit_results(tmp_path)
    targets = {report_of(plan.evaluation, one) for one in (decision, decision.made_by("ada"))}
    assert len(targets) == 1


def test_every_step_of_the_lineage_has_its_date(tmp_path: Path) -> None:
    plan, decision = commit_results(tmp_path)
    decision = decision.made_by("ada, run 7")
    data = gather(plan.checkpoint, plan.predictions, plan.evaluation, decision, plan.report)
    _, *made, report = data.lineage
    assert [next(iter(step.facts))[0] for step in made] == ["created (UTC)"] * len(made) != []
    assert decision.decided is not None
    told = decision.decided.strftime("%Y-%m-%d %H:%M")
    assert report.facts[0] == ("decided (UTC)", told)
    assert data.decision == decision


def test_the_command_of_a_run_on_some_cores_gives_the_same_uris(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv(machine.CORES, "1")
    recipe = recipes.load("mnist-sample-resnet18")
    made = make_plan.make_plan(storage=str(tmp_path / "root"), recipe=recipe)
    monkeypatch.delenv(machine.CORES)
    words = shlex.split(made.report.command)
    options = options_of(RunOptions, *words[2:], "--storage", str(tmp_path / "other"))
    choose_resources(options)
    again = preflight.check_and_plan(options).plan
    assert (words[-2:], again.checkpoint.name) == (["--cores", "1"], made.checkpoint.name)


def test_number_of_cores_is_among_the_parameters_of_a_run_that_set_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = recipes.load("mnist-sample-resnet18")
    assert "cores" not in make_plan.make_plan(storage=str(tmp_path), recipe=recipe).report.values
    monkeypatch.setenv(machine.CORES, "1")
    assert make_plan.make_plan(storage=str(tmp_path), recipe=recipe).report.values["cores"] == 1


def test_address_of_an_earlier_download_is_shown_without_its_credentials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = {"name": "images.gz", "sha256": "0", "url": "ftp://user:secret@mirror.example/images.gz"}
    monkeypatch.setattr(results, "_source", lambda *_: source)
    plan, decision = commit_results(tmp_path)
    data = gather(plan.checkpoint, plan.predictions, plan.evaluation, decision, plan.report)
    summary = summarize(plan, plan.files, [], decision, report_of(plan.evaluation, decision))
    for shown in (str(data.lineage), str(summary)):
        assert "ftp://***@mirror.example/images.gz" in shown and "secret" not in shown


def test_summary_shows_classes_in_the_reason_literally(tmp_path: Path) -> None:
    plan, decision = commit_results(tmp_path)
    decision = decision.model_copy(update={"reason": "new class <img src=x>, gone class a|b *c*"})
    data = gather(plan.checkpoint, plan.predictions, plan.evaluation, decision, plan.report)
    summary = "\n".join(artifacts._summary(data))
    assert r"new class \<img src\=x\>\, gone class a\|b \*c\*." in summary


def test_report_says_what_is_different_from_the_champion_before(tmp_path: Path) -> None:
    plan, decision = commit_results(tmp_path)
    assert "There was no other champion before this model." in _page(plan, decision)
    champion = CheckpointURI(plan.root.child("checkpoints/older-0123456789ab"))
    commits.commit(champion, kind="checkpoint", parents={"prepared": plan.prepared}, parameters={"seed": 7}, listed=[])
    _predict_all_right(plan, champion)
    usual: dict[str, Any] = {"evaluation": "", "reason": "", "gate": {}, "metrics": {}, "promoted": True}
    earlier = Decision(number=1, champion=champion, challenger=champion, **usual)
    registry.append(plan.root, plan.registered_model, earlier)
    text = _page(plan, decision.model_copy(update={"number": 2}))
    assert f"different from the champion before, {champion} ," in text and "recipe: seed 7 -> unset" in text
    accuracy = manifest.load(plan.evaluation).statistics["test_accuracy"]
    assert f"accuracy went from 1.0000 to {accuracy:.4f}: -{1 - accuracy:.4f}" in text
    assert f"Got worse: {round(400 * (1 - accuracy))}" in text and "Got better" not in text
    shutil.rmtree(champion)
    text = _page(plan, decision.model_copy(update={"number": 2}))
    assert f"The champion before cannot be compared: {champion} is not committed" in text


def _page(plan: Plan, decision: Decision) -> str:
    """The text of the report's page."""
    data = gather(plan.checkpoint, plan.predictions, plan.evaluation, decision, plan.report)
    against = against_champion(plan.checkpoint, plan.evaluation, decision, plan.report)
    return Page(render(dataclasses.replace(data, **against))).text


def _predict_all_right(plan: Plan, champion: CheckpointURI) -> None:
    """Commit the predictions of `champion` on the plan's test rows, each of them right."""
    uri = predictions_of(plan.root, champion, DatasetURI(plan.prepared), split="test")
    rows = tables.read_split(plan.predictions, "test")
    rows = rows.set_column(2, "prediction", rows["label"])
    parents: dict[str, URI] = {"checkpoint": champion, "dataset": plan.prepared}
    listed = [tables.write_part(uri, rows, split="test", index=0)]
    commits.commit(
        uri, kind="predictions", parents=parents, parameters={}, listed=listed, schema=tables.describe(rows.schema)
    )


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.slow  # the start of Prefect's server takes most of its time
def test_results_that_the_server_does_not_take_for_its_page_never_fail_the_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: Any, **__: Any) -> None:
        raise httpx.ConnectError("connection refused")

    monkeypatch.setattr(SyncPrefectClient, "create_artifact", fails)
    plan, decision = commit_results(tmp_path)
    data = gather(plan.checkpoint, plan.predictions, plan.evaluation, decision, plan.report)

    @flow
    def reports() -> str:
        artifacts.publish(data, report_of(plan.evaluation, decision))
        return "it goes on"

    assert reports() == "it goes on"
    assert "the results cannot be shown on the page of the run: connection refused" in caplog.text
