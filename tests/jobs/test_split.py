"""A user's image stays in training or in validation when other images are added or removed."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from storage import tables
from storage.uri import DatasetURI
from tasks.jobs import main
from tasks.jobs.spec import PreprocessSpec
from tasks.learning import recipes
from tasks.planning import make_plan
from tests.ingested import ingested

CLASSES = ("cat", "dog")
SIDES = ("train", "validation")


def write_image(path: Path, number: int) -> None:
    """Write the image of that number: other numbers have other pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """200 images to learn from, half of them cats, and four to test with."""
    for split, count in (("train", 200), ("test", 4)):
        for number in range(count):
            name = f"{split}/{CLASSES[number % 2]}/photo-{number:03d}.png"
            write_image(tmp_path / "photos" / name, number + 1000 * (split == "test"))
    return tmp_path / "photos"


def sides(photos: Path, *settings: str) -> dict[str, list[bytes]]:
    """The images of each side, as a run of the general recipe would split those in the folder."""
    recipe = recipes.override(recipes.load("images-resnet18"), ["image_size=8", *settings])
    made = make_plan.make_plan(storage=str(photos.parent / "root"), recipe=recipe, data=str(photos), workers=0)
    spec = PreprocessSpec(
        storage=made.root,
        deadline_s=600,
        source=ingested(made),
        target=made.prepared,
        parameters=made.preprocess_parameters,
    )
    main.run_here(spec, tell=lambda line: None)
    return {side: tables.read_split(DatasetURI(made.prepared), side)["image"].to_pylist() for side in SIDES}


def test_an_image_that_is_added_or_removed_moves_no_other_to_the_other_side(photos: Path) -> None:
    before = {side: set(found) for side, found in sides(photos).items()}
    assert 8 <= len(before["validation"]) <= 36 and sum(map(len, before.values())) == 200
    added = photos / "train" / "cat" / "a.png"  # the first by path: every other cat gets another number
    write_image(added, 500)
    after = {side: set(found) for side, found in sides(photos).items()}
    assert sum(map(len, after.values())) == 201
    for side, other in (("train", "validation"), ("validation", "train")):
        assert len(before[side] & after[other]) == 0, f"of {side} before"
    added.unlink()
    (photos / "train" / "cat" / "photo-000.png").unlink()
    less = {side: set(found) for side, found in sides(photos).items()}
    assert all(less[side] <= before[side] for side in SIDES)


def test_the_same_image_twice_lies_on_one_side_whatever_its_name_and_class(photos: Path) -> None:
    for number in range(200):  # each once more in its own class, and each tenth in the other one
        write_image(photos / "train" / CLASSES[number % 2] / f"again-{number * 7 % 200:03d}.png", number)
        if number % 10 == 0:
            write_image(photos / "train" / CLASSES[1 - number % 2] / f"wrong-{number:03d}.png", number)
    found = sides(photos)
    assert sum(map(len, found.values())) == 420 and len(found["validation"]) >= 16
    assert set(found["train"]).isdisjoint(found["validation"])


def test_the_seed_of_training_leaves_the_split_as_it_is_and_that_of_the_split_does_not(photos: Path) -> None:
    usual = sides(photos)
    assert sides(photos, "seed=1") == usual
    assert set(sides(photos, "split_seed=1")["validation"]) != set(usual["validation"])
