"""`diff --explain` says how much of a difference the data explains, and how much the recipe, by ordinary trainings."""

import contextlib
import io
import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.__main__ import flow_of
from flows.cli import app
from storage import kinds, manifest
from storage.uri import URI
from tasks.comparing import attribution
from tasks.comparing.results import Results
from tests.image_folder import encoded
from tests.runs import no_flow

CLASSES = ("across", "down", "plain")
SMALL = {"image_size": "16", "channels": "1", "model": "small-cnn", "epochs": "6", "batch_size": "16"}
SMALL |= {"max_shift": "1", "precision": "fp32"}


def write_images(folder: Path) -> Path:
    """Forty training and twenty test images of each class."""
    for split, count in (("train", 40), ("test", 20)):
        for label, name in enumerate(CLASSES):
            (folder / split / name).mkdir(parents=True)
            for number in range(count):
                content = encoded(1000 * (split == "test") + 100 * label + number, label)
                (folder / split / name / f"{name} {number}.png").write_bytes(content)
    return folder


def swap_labels(folder: Path) -> None:
    """Move most training images of two classes to the other, and change the test images a little."""
    for number in range(30):
        for name, other in (("across", "down"), ("down", "across")):
            file = f"{name} {number}.png"
            (folder / "train" / name / file).rename(folder / "train" / other / file)
    (folder / "test/plain/plain 0.png").unlink()
    (folder / "test/plain/new.png").write_bytes(encoded(7777, 2))
    (folder / "test/plain/plain 1.png").rename(folder / "test/plain/other name.png")
    shutil.copy(folder / "train/plain/plain 5.png", folder / "test/plain/was in training.png")


def command(*words: str, flow: Any = flow_of) -> dict[str, Any]:
    """What the command prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert app.main(flow, words=[*words, "--json"]) == 0
    document: dict[str, Any] = json.loads(output.getvalue())
    return document


def run(folder: Path, root: Path, recipe: str = "images-resnet18", **settings: str) -> str:
    """The checkpoint of a run with `settings` on the images as they are now."""
    more = [word for name, value in (SMALL | settings).items() if value for word in ("--set", f"{name}={value}")]
    words = ("run", "--data", str(folder), "--storage", str(root), "--recipe", recipe, "--workers", "0")
    return str(command(*words, *more)["uris"]["checkpoint"])


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("explained")


@pytest.fixture(scope="module")
def two(place: Path, prefect_server: None) -> tuple[str, str]:
    """The checkpoints of two runs between which data and recipe changed; both changes make the model worse."""
    folder = write_images(place / "images")
    a = run(folder, place / "root")
    swap_labels(folder)
    return a, run(folder, place / "root", learning_rate="1e-6")


def explain(root: Path, a: str, b: str, *more: str, flow: Any = flow_of) -> dict[str, Any]:
    return command("diff", a, b, "--storage", str(root), "--explain", *more, flow=flow)


@pytest.fixture(scope="module")
def explained(two: tuple[str, str], place: Path) -> dict[str, Any]:
    return explain(place / "root", *two)


def test_parts_of_data_and_recipe_add_up_to_the_difference(explained: dict[str, Any]) -> None:
    attributed = explained["explained"]
    parts = {name: part["difference"] for name, part in attributed["differences"].items()}
    assert parts["data"] + parts["recipe"] == pytest.approx(parts["both"])
    assert parts["data"] < -0.1 and parts["recipe"] < -0.1
    mean = {(arm["data"], arm["recipe"]): np.mean(arm["test_accuracy"]) for arm in attributed["arms"]}
    assert parts["both"] == pytest.approx(mean["b", "b"] - mean["a", "a"])
    assert all(part["lower"] <= part["difference"] <= part["upper"] for part in attributed["differences"].values())
    assert "recipe: learning_rate 0.002 -> 1e-06" in explained["changes"]


def test_all_arms_are_measured_on_the_rows_that_are_test_rows_of_both(
    explained: dict[str, Any], two: tuple[str, str]
) -> None:
    attributed = explained["explained"]
    assert attributed["rows"] == 59, "one was removed, one renamed, one added, one was a training row"
    own = [arm["checkpoints"][0] for arm in attributed["arms"] if arm["data"] == arm["recipe"]]
    assert own == [*two]
    trained = [manifest.load(URI(uri)) for arm in attributed["arms"] for uri in arm["checkpoints"]]
    recipes = [recorded.statistics["recipe"]["training"] for recorded in trained]
    assert [recipe["seed"] for recipe in recipes] == [0, 1] * 4
    assert [recipe["optimizer"]["learning_rate"] for recipe in recipes] == [0.002, 0.002, 1e-6, 1e-6] * 2
    raws = [recorded.parents["prepared"].content for recorded in trained]
    assert len({*raws[:4]}) == len({*raws[4:]}) == 1 and raws[0] != raws[4]


def test_repeated_it_trains_nothing_and_reads_as_a_table(
    explained: dict[str, Any], two: tuple[str, str], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert explain(place / "root", *two, flow=no_flow) == explained
    capsys.readouterr()
    assert app.main(no_flow, words=["diff", *two, "--storage", str(place / "root"), "--explain"]) == 0
    text = capsys.readouterr().out
    assert "with the recipe of A and B, on 59 test rows, with 2 seeds each" in text
    assert "what explains the difference in accuracy\n  data    -0." in text and "  recipe  -0." in text


def test_where_only_one_changed_it_says_so_and_trains_nothing(two: tuple[str, str], place: Path) -> None:
    root, folder = place / "root", place / "images"
    b_recipe, b_gate = run(folder, root, seed="9"), run(folder, root, learning_rate="1e-6", minimum="0.2")
    before = sorted((root / "checkpoints").iterdir())
    assert explain(root, two[1], b_recipe, flow=no_flow)["explained"]["only"] == "only the recipe"
    assert explain(root, two[1], b_gate, flow=no_flow)["explained"]["only"] == "neither data nor recipe"
    (folder / "train/plain/plain 9.png").unlink()
    b_data = run(folder, root, learning_rate="1e-6")
    assert explain(root, two[1], b_data, flow=no_flow)["explained"]["only"] == "only the data"
    assert len(sorted((root / "checkpoints").iterdir())) == len(before) + 1


def refused(root: Path, words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert app.main(no_flow, words=["diff", *words, "--storage", str(root), "--explain"]) == 2
    return capsys.readouterr().err.splitlines()[-1]


def test_what_cannot_be_explained_is_refused_in_one_line(
    two: tuple[str, str],
    place: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    root, folder = tmp_path / "root", place / "images"
    shutil.copytree(place / "root", root)
    names = [Path(uri).name for uri in two]
    assert "--seeds: " in refused(root, [*names, "--seeds", "1"], capsys)
    shutil.copytree(folder, tmp_path / "images")
    (tmp_path / "images/train/plain").rename(tmp_path / "images/train/simple")
    (tmp_path / "images/test/plain").rename(tmp_path / "images/test/simple")
    other_classes = run(tmp_path / "images", root, seed="3")
    assert "different classes" in refused(root, [names[0], other_classes], capsys)
    raw = manifest.load(manifest.load(URI(two[0])).parent("prepared", of=URI(two[0]))).parents["raw"].uri
    shutil.rmtree(root / raw)
    line = refused(root, names, capsys)
    assert raw in line and "run its pipeline again" in line


def test_parts_are_the_mean_of_both_orders_with_students_interval() -> None:
    scores = {
        ("a", "a"): np.array([0.90, 0.92]),
        ("a", "b"): np.array([0.86, 0.84]),
        ("b", "a"): np.array([0.80, 0.82]),
        ("b", "b"): np.array([0.70, 0.72]),
    }
    parts = attribution.differences(scores)
    assert {name: part["difference"] for name, part in parts.items()} == pytest.approx(
        {"data": -0.12, "recipe": -0.08, "both": -0.20}
    )
    error = 2.776 * (0.0002 / 2) ** 0.5
    assert parts["data"]["upper"] == pytest.approx(-0.12 + error) and parts["data"]["is_told_apart"]
    assert parts["both"]["upper"] == pytest.approx(-0.20 + error * 2**0.5)
    same = attribution.differences({arm: np.array([0.9, 0.8]) for arm in attribution.ARMS})
    assert not any(part["is_told_apart"] for part in same.values())


def remove_most_of_a_class(folder: Path) -> None:
    for number in range(37):
        (folder / f"train/down/down {number}.png").unlink()


def relabel(folder: Path) -> None:
    for number in range(30):
        (folder / f"train/down/down {number}.png").rename(folder / f"train/plain/from down {number}.png")


CAUSES: dict[str, tuple[dict[str, str], Callable[[Path], None] | None, str]] = {
    "learning rate": ({"learning_rate": "5e-6"}, None, "recipe: learning_rate 0.002 -> 5e-06"),
    "relabelled files": ({}, relabel, "data: 30 files relabelled: down -> plain 30"),
    "removed examples": ({}, remove_most_of_a_class, "data: 37 files removed: down 37"),
    "another crop": ({"crop_scale": "0.01"}, None, "recipe: crop_scale 0.3 -> 0.01"),
}


def accuracy_of(checkpoint: str) -> float:
    evaluation = Results.of(URI(checkpoint)).require(kinds.EVALUATION)[1]
    return float(evaluation.statistics["test_accuracy"])


@pytest.mark.slow
def test_planted_cause_is_the_only_one_named_after_real_trainings(tmp_path: Path, prefect_server: None) -> None:
    folder, root = write_images(tmp_path / "images"), tmp_path / "root"
    usual = {"store": "files", "crop_scale": "0.3", "max_shift": "", "epochs": "3"}
    of_seed = {seed: accuracy_of(run(folder, root, **usual, seed=seed)) for seed in "0123"}
    best, worst = (choose(of_seed, key=lambda seed: of_seed[seed]) for choose in (max, min))
    usual["seed"] = best
    good = run(folder, root, **usual)
    causes = CAUSES | {"seed": ({"seed": worst}, None, f"recipe: seed {best} -> {worst}")}
    for cause, (settings, change, named) in causes.items():
        changed = shutil.copytree(folder, tmp_path / cause / "images")
        if change:
            change(changed)
        document = command("diff", good, run(changed, root, **usual | settings), "--storage", str(root))
        assert document["changes"] == [named] and document["notes"] == {}
        accuracy = document["test_rows"]["metrics"]["test_accuracy"]
        print(f"{cause:<17} {accuracy['a']:.4f} -> {accuracy['b']:.4f}  {document['changes']}")
        assert accuracy["difference"] < 0
