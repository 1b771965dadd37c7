"""A result made from earlier bytes of a parent is not reused, and keeps its URI."""

import dataclasses
import shutil
from pathlib import Path

import pytest

from storage import commits, files, manifest
from storage.uri import URI, CheckpointURI, DatasetURI, PredictionsURI, Root
from tasks.learning import recipes
from tasks.planning.plan import Plan
from tasks.planning.result_uris import evaluation_of, predictions_of


def plan(folder: Path) -> Plan:
    """The request that every run here makes."""
    return Plan(root=Root(str(folder)), recipe=recipes.load("mnist-sample-resnet18"))


def commit(uri: URI, kind: str, content: bytes, **parents: URI) -> None:
    """A result that holds `content`, and says that it took a second or two."""
    listed = [commits.write_file(uri, "test/part-00000.bin", content, split="test", rows=1)]
    statistics = {"seconds": 1.0 + len(files.children(uri.parent))}
    commits.commit(uri, kind=kind, parents=parents, parameters={}, listed=listed, statistics=statistics)


def run(made: Plan, content: bytes) -> dict[str, URI]:
    """Commit what is not there yet in the order in which a run does; what is made anew holds `content`."""
    for stage, kind, roles in (
        ("raw", "raw", {}),
        ("prepared", "prepared", {"raw": "raw"}),
        ("checkpoint", "checkpoint", {"prepared": "prepared"}),
        ("predictions", "predictions", {"checkpoint": "checkpoint", "dataset": "prepared"}),
        ("evaluation", "evaluation", {"predictions": "predictions"}),
    ):
        uri = getattr(made, stage)
        if manifest.find(uri) is None:
            parents = {role: getattr(made, parent) for role, parent in roles.items()}
            commit(uri, kind, content, **parents)  # type: ignore[arg-type]
    return {stage: getattr(made, stage) for stage in ("raw", "prepared", "checkpoint", "predictions", "evaluation")}


@pytest.mark.parametrize(
    ("again", "elsewhere"),
    [
        ("raw", ["prepared", "checkpoint", "predictions", "evaluation"]),
        ("prepared", ["checkpoint", "predictions", "evaluation"]),
        ("checkpoint", ["predictions", "evaluation"]),
        ("predictions", ["evaluation"]),
    ],
)
def test_what_is_made_again_to_other_bytes_has_children_of_its_own(
    tmp_path: Path, again: str, elsewhere: list[str]
) -> None:
    before = run(plan(tmp_path), b"before")
    files.remove(before[again])
    now = run(plan(tmp_path), b"now")
    assert [stage for stage in now if now[stage] != before[stage]] == elsewhere
    for stage in elsewhere:
        assert manifest.verify(before[stage]), "a URI that was handed out holds the same bytes for ever"
        assert manifest.changed_parent(now[stage], manifest.load(now[stage])) is None
    assert run(plan(tmp_path), b"never") == now, "the same request finds them again"


@pytest.mark.parametrize("is_named", [False, True])
def test_result_of_another_roots_parent_with_the_same_name_is_not_reused(tmp_path: Path, is_named: bool) -> None:
    here, there = plan(tmp_path / "here"), plan(tmp_path / "there")
    mine, theirs = run(here, b"mine"), run(there, b"theirs")
    assert mine["checkpoint"].name == theirs["checkpoint"].name
    model = CheckpointURI(theirs["checkpoint"])
    if is_named:  # a copy below the same root
        model = CheckpointURI(here.root.child(f"copies/{model.name}"))
        shutil.copytree(theirs["checkpoint"], model)
    scored = predictions_of(here.root, model, here.prepared, split="test")
    assert scored != mine["predictions"]
    commit(scored, "predictions", b"scored", checkpoint=model, dataset=here.prepared)
    assert predictions_of(here.root, model, here.prepared, split="test") == scored, "the same request finds it again"
    assert evaluation_of(here.root, scored) != mine["evaluation"]
    assert run(here, b"never") == mine
    given = dataclasses.replace(here, data=DatasetURI(theirs["raw"]))
    assert given.prepared.fingerprint != here.prepared.fingerprint
    assert len(recorded := {given.prepared, given.checkpoint} - {*mine.values()}) == 2, recorded


def test_copy_of_a_parent_below_another_root_finds_the_results_of_the_original(tmp_path: Path) -> None:
    made = run(plan(tmp_path / "here"), b"mine")
    copied = tmp_path / "there" / "checkpoints" / made["checkpoint"].name
    shutil.copytree(made["checkpoint"], copied)
    root, prepared = plan(tmp_path / "here").root, DatasetURI(made["prepared"])
    assert predictions_of(root, CheckpointURI(str(copied)), prepared, split="test") == made["predictions"]


@pytest.mark.parametrize("again", ["raw", "prepared", "checkpoint"])
def test_uris_computed_before_the_run_do_not_change_its_results(tmp_path: Path, again: str) -> None:
    before = run(plan(tmp_path), b"before")
    files.remove(before[again])
    looked = plan(tmp_path)
    assert looked.evaluation == before["evaluation"], "what the missing one will hold is not known yet"
    now = run(looked, b"now")
    assert now["evaluation"] != before["evaluation"]
    assert now == run(plan(tmp_path), b"never")


@pytest.mark.parametrize("again", ["raw", "prepared", "checkpoint", "predictions", "evaluation"])
def test_what_is_made_again_to_the_same_bytes_keeps_its_children(tmp_path: Path, again: str) -> None:
    before = run(plan(tmp_path), b"the same")
    files.remove(before[again])
    assert run(plan(tmp_path), b"the same") == before


def test_predictions_on_any_dataset_are_those_of_the_bytes_that_are_there(tmp_path: Path) -> None:
    made = plan(tmp_path)
    run(made, b"before")
    batch = predictions_of(made.root, made.checkpoint, made.raw, split=None)
    commit(batch, "predictions", b"before", checkpoint=made.checkpoint, dataset=made.raw)
    files.remove(made.checkpoint)
    commit(made.checkpoint, "checkpoint", b"now", prepared=made.prepared)
    other = predictions_of(made.root, made.checkpoint, made.raw, split=None)
    assert isinstance(other, PredictionsURI) and other != batch
