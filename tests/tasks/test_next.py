"""What to label next teaches more than a random choice, and a changed copy of an image finds it."""

import contextlib
import csv
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageOps

from flows.cli import app
from storage import files
from storage.kinds import EMBEDDINGS
from storage.uri import Root
from tasks.comparing import neighbors
from tasks.learning import probe

CLASSES = ("moss", "rust", "sky")
TINTS = np.array([(0, 90, 0), (90, 0, 0), (0, 0, 90)])


def photo(number: int, label: int) -> Image.Image:
    """Soft spots such as no other image has, in the tint of a class."""
    spots = np.random.default_rng(number).integers(0, 160, (5, 5, 3)) + TINTS[label]
    return Image.fromarray(spots.astype(np.uint8)).resize((64, 64), Image.Resampling.BICUBIC)


def command(*words: str) -> Any:
    """What a command prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert app.main(words=[*words, "--workers", "0", "--json"]) == 0
    return json.loads(output.getvalue())


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, prefect_server: None) -> Path:
    """A champion, its `photos`, and `new` ones."""
    place = tmp_path_factory.mktemp("next")
    for label, name in enumerate(CLASSES):
        (place / "photos" / name).mkdir(parents=True)
        for number in range(24):
            photo(100 * label + number, label).save(place / "photos" / name / f"{number}.png")
    size = ("--set", "image_size=64", "--set", "validation_fraction=0.2")
    run = ("run", "--recipe", "images-probe", "--data", str(place / "photos"), "--storage", str(place / "root"))
    assert command(*run, *size)["promoted"]
    new = place / "new"
    (new / "rust").mkdir(parents=True)
    for number in range(12):
        photo(1000 + number, number % 3).save(new / f"{number}.png")
        photo(1000, 0).save(new / f"9 copy {number}.bmp")
    photo(2000, 1).save(new / "rust" / "labeled.png")
    photo(0, 0).save(new / "of the model.png")
    (new / "broken.png").write_bytes(b"no image")
    return place


def test_next_lists_each_unlabeled_image_once_and_nothing_the_model_knows(place: Path) -> None:
    words = ("next", str(place / "new"), "--storage", str(place / "root"))
    rows = command(*words, "--csv", str(place / "next.csv"), "--copy-to", str(place / "copies"))
    assert {row["file"] for row in rows} == {f"{number}.png" for number in range(12)}
    assert [row["rank"] for row in rows] == list(range(1, 13)) and all(0 < row["probability"] <= 1 for row in rows)
    with (place / "next.csv").open(newline="") as file:
        assert [line["file"] for line in csv.DictReader(file)] == [row["file"] for row in rows]
    for row, copy in zip(rows, sorted((place / "copies").iterdir()), strict=True):
        assert copy.read_bytes() == (place / "new" / row["file"]).read_bytes()
        assert copy.name == f"{row['rank']:05d} {row['class']}, {row['file']}"
    chosen = command(*words, "--count", "4")
    assert len(chosen) == 4 and len({row["class"] for row in chosen}) > 1


def test_predictions_have_distances_and_say_whether_the_new_images_differ(place: Path) -> None:
    words = ("predict", "--data", str(place / "new"), "--storage", str(place / "root"))
    assert command(*words, "--no-drift")["drift"] is None
    document = command(*words, "--csv", str(place / "new.csv"), "--max-distance", "0")
    (page,) = (place / "root" / "reports").glob("*/index.html")
    assert "Test rows by their distance" in page.read_text()
    assert document["drift"]["is_drift"] is None and document["drift"]["summary"].startswith(
        "too few to compare: 26 new"
    )
    with (place / "new.csv").open(newline="") as file:
        rows = {line["file"]: line for line in csv.DictReader(file)}
    known, other = rows["of the model.png"], rows["3.png"]
    assert (known["distance"], known["reason"]) == ("0.0000", "") and known["class"]
    assert (other["class"], other["reason"]) == ("", "distance above 0") and float(other["distance"]) > 0.01
    assert document["above_max_distance"] == sum(row["reason"] == "distance above 0" for row in rows.values())


@pytest.mark.parametrize("change", [ImageOps.mirror, lambda image: ImageEnhance.Brightness(image).enhance(1.2)])
def test_changed_copy_finds_the_image_it_was_made_of(place: Path, tmp_path: Path, change: Any) -> None:
    root = Root(str(place / "root"))
    before = set(files.children(root.child(EMBEDDINGS.folder)))
    for label, name in enumerate(CLASSES):
        change(photo(100 * label + 5, label)).save(tmp_path / f"{name}.png")
        rows = command("similar", str(tmp_path / f"{name}.png"), "--storage", root, "--count", "3")
        assert len(rows) == 3 and rows[0]["file"] == f"{name}/5.png" and rows[0]["class"] == name
        assert 1 >= rows[0]["similarity"] > rows[1]["similarity"]
    assert len(set(files.children(root.child(EMBEDDINGS.folder))) - before) <= 3, "those of the run are used"


def test_chosen_images_teach_more_than_random_ones() -> None:
    """Waves of five lengths, the longer two hard to tell apart: five draws of 25 labels and 25 more."""
    draw, labels, rows = np.random.default_rng(0), np.arange(600) % 5, np.arange(64)[:, None]
    lengths = np.array([4, 8, 16, 28, 32])[labels]
    waves = [60 * np.sin(2 * np.pi * rows / length + draw.uniform(0, 6)) for length in lengths]
    images = np.array([wave + draw.normal(0, 100, (64, 64)) for wave in waves])
    vectors = np.abs(np.fft.rfft(images.mean(2), axis=1))[:, 1:]
    wrong = []
    for number in range(5):
        test, labeled, pool = np.split(np.random.default_rng(number).permutation(600), [300, 325])
        odds = np.exp(probe.fit(vectors[labeled], labels[labeled]).logits(vectors[pool]))
        probabilities = odds / odds.sum(1, keepdims=True)
        chosen = neighbors.choose(probabilities, vectors[pool], count=25)
        assert len(set(chosen)) == 25
        trained = [np.append(labeled, more) for more in (pool[chosen], pool[:25])]
        models = [probe.fit(vectors[numbers], labels[numbers]) for numbers in trained]
        wrong.append([(model.logits(vectors[test]).argmax(1) != labels[test]).mean() for model in models])
    chosen_wrong, random_wrong = np.mean(wrong, 0)
    assert chosen_wrong < random_wrong / 2
