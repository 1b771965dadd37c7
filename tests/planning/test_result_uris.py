"""A result made from earlier bytes of a parent is neither reused nor committed, and keeps its URI."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from storage import commits, files, kinds, manifest
from storage.commits import ParentChanged
from storage.uri import URI, CheckpointURI, DatasetURI
from tasks.learning import recipes
from tasks.orchestration.stage import stage
from tasks.planning import make_plan
from tasks.planning.plan import Plan
from tasks.planning.result_uris import evaluation_of, predictions_of

Results = dict[str, Any]


def plan(folder: Path) -> Plan:
    """The request that every run here makes."""
    return make_plan.make_plan(storage=str(folder), recipe=recipes.load("mnist-sample-resnet18"))


def commit(uri: URI, kind: str, content: bytes, *, expected: Any = None, **parents: URI) -> None:
    """A result that holds `content`, and says that it took a second or two."""
    listed = [commits.write_file(uri, "test/part-00000.bin", content, split="test", rows=1)]
    statistics: Any = {"seconds": 1.0 + len(files.children(uri.parent))}
    schema: Any = {"metadata": {}}
    commits.commit(
        uri,
        kind=kind,
        parents=parents,
        expected=expected,
        parameters={"data": "mnist-sample"},
        listed=listed,
        statistics=statistics,
        schema=schema,
    )


def run(made: Plan, content: bytes) -> Results:
    """Run the stages of a plan; what is made anew holds `content`."""
    uris: Results = {"raw": made.raw, "prepared": made.prepared, "checkpoint": made.checkpoint}
    uris |= {"predictions": made.predictions, "evaluation": made.evaluation}
    steps: list[tuple[str, dict[str, str], Any]] = [
        ("raw", {}, {}),
        ("prepared", {"raw": "raw"}, made.preprocess),
        ("checkpoint", {"prepared": "prepared"}, made.train.values),
        ("predictions", {"checkpoint": "checkpoint", "dataset": "prepared"}, {"split": "test"}),
        ("evaluation", {"predictions": "predictions"}, {}),
    ]
    for name, roles, parameters in steps:
        parents = {role: uris[parent] for role, parent in roles.items()}
        kind = kinds.KINDS[name] if roles else None
        with stage(name, uris[name], kind=kind, parents=parents, parameters=parameters) as current:
            if not current.reused:
                commit(uris[name], name, content, expected=current.parents, **parents)
    return uris


@pytest.mark.parametrize(
    ("again", "elsewhere"),
    [("raw", ["prepared", "checkpoint", "predictions", "evaluation"]), ("checkpoint", ["predictions", "evaluation"])],
)
def test_what_is_made_again_to_other_bytes_during_a_run_ends_it_and_has_children_of_its_own(
    tmp_path: Path, again: str, elsewhere: list[str]
) -> None:
    before = run(plan(tmp_path), b"before")
    files.remove(before[again])
    looked = plan(tmp_path)
    assert looked.evaluation == before["evaluation"], "what the missing one will hold is not known yet"
    with pytest.raises(ParentChanged, match="^[^\n]* belongs to other bytes of .* same command again plans anew"):
        run(looked, b"now")
    now = run(plan(tmp_path), b"now")
    assert [name for name in now if now[name] != before[name]] == elsewhere
    for name in elsewhere:
        assert manifest.verify(before[name]), "a URI that was handed out holds the same bytes for ever"
        assert manifest.changed_parent(now[name], manifest.load(now[name])) is None
    assert run(plan(tmp_path), b"never") == now, "the same request finds them again"


@pytest.mark.parametrize("again", ["raw", "checkpoint", "evaluation"])
def test_what_is_made_again_to_the_same_bytes_keeps_its_children(tmp_path: Path, again: str) -> None:
    before = run(plan(tmp_path), b"the same")
    files.remove(before[again])
    assert run(plan(tmp_path), b"the same") == before


@pytest.mark.parametrize("is_named", [False, True])
def test_result_of_another_roots_parent_with_the_same_name_is_not_reused(tmp_path: Path, is_named: bool) -> None:
    here = plan(tmp_path / "here")
    mine, theirs = run(here, b"mine"), run(plan(tmp_path / "there"), b"theirs")
    assert mine["checkpoint"].name == theirs["checkpoint"].name
    model = CheckpointURI(theirs["checkpoint"])
    if is_named:  # a copy below the same root
        model = CheckpointURI(here.root.child(f"copies/{model.name}"))
        shutil.copytree(theirs["checkpoint"], model)
    scored = predictions_of(here.root, model, here.prepared, split="test")
    assert scored != mine["predictions"]
    parents: dict[str, URI] = {"checkpoint": model, "dataset": here.prepared}
    how: dict[str, Any] = {"kind": kinds.PREDICTIONS, "parents": parents, "parameters": {"split": "test"}}
    with pytest.raises(ParentChanged), stage("predict", mine["predictions"], **how):
        pass
    with stage("predict", scored, **how) as current:
        commit(scored, "predictions", b"theirs on mine", expected=current.parents, **parents)
    assert predictions_of(here.root, model, here.prepared, split="test") == scored, "the same request finds it again"
    assert evaluation_of(here.root, scored) != mine["evaluation"]
    assert run(plan(tmp_path / "here"), b"never") == mine


def test_copy_of_a_parent_below_another_root_finds_the_results_of_the_original(tmp_path: Path) -> None:
    made = run(plan(tmp_path / "here"), b"mine")
    copied = tmp_path / "there" / "checkpoints" / made["checkpoint"].name
    shutil.copytree(made["checkpoint"], copied)
    root, prepared = plan(tmp_path / "here").root, DatasetURI(made["prepared"])
    assert predictions_of(root, CheckpointURI(str(copied)), prepared, split="test") == made["predictions"]


def test_result_is_not_made_under_the_name_of_one_of_other_parents(tmp_path: Path) -> None:
    made = plan(tmp_path)
    run(made, b"mine")
    other = DatasetURI(made.root.child("datasets/prepared/other-0123456789ab"))
    commit(other, "prepared", b"other", raw=made.raw)
    files.remove(made.checkpoint)
    how: dict[str, Any] = {"kind": kinds.CHECKPOINT, "parents": {"prepared": other}, "parameters": made.train.values}
    with pytest.raises(ParentChanged, match="is not the name of the result of"), stage("train", made.checkpoint, **how):
        raise AssertionError("it must not begin")
