"""The registered model of a run: that of the data or the one that was named, never that of other data by accident."""

import json
from pathlib import Path
from typing import Any

import pytest

from storage import champions, manifest
from storage.kinds import CheckpointURI, DatasetURI
from storage.uri import Root
from tasks.learning import recipes
from tasks.planning import make_plan, model_check, model_requests, warm_start
from tasks.planning.plan import Plan
from tests import committed
from tests.committed import promote
from tests.image_folder import CLASSES, encoded, write_folder


@pytest.fixture
def root(tmp_path: Path) -> Root:
    return Root(str(tmp_path / "root"))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "photos" / "data", train=1, test=1)


def make(root: Root, data: Path | str, *settings: str, **more: Any) -> Plan:
    recipe = recipes.override(recipes.load("images-resnet18"), settings)
    return make_plan.make_plan(storage=root, recipe=recipe, data=str(data), **more)


def commit_raw(made: Plan, *, classes: tuple[str, ...] = CLASSES) -> DatasetURI:
    """The raw dataset of a plan, of two rows that nobody reads."""
    images = model_check.listing_of(made)
    assert images and made.ingest
    size = made.ingest.image_size
    listed = [manifest.File(path=split, split=split, size=1, rows=1, sha256="") for split in ("train", "test")]
    committed.commit(
        made.preprocess.raw,
        "raw",
        listed,
        parameters=made.ingest.values,
        schema={
            "columns": {},
            "metadata": {"shape": json.dumps([size, size, 3]), "dtype": "uint8", "classes": json.dumps(classes)},
        },
        sources=[{"name": "3 files", "sha256": images.digest, "url": images.uri}],
    )
    return made.preprocess.raw


def crown(made: Plan, name: str, *, split: dict[str, Any] | None = None, **model: object) -> CheckpointURI:
    """A champion of `name`, made from the data of a plan."""
    usual: dict[str, Any] = {"model": "resnet18", "image_shape": [128, 128, 3], "classes": list(CLASSES)}
    commit_raw(made)
    committed.commit(made.train.prepared, "prepared", parents={"raw": made.preprocess.raw})
    about: dict[str, Any] = {"model": usual | model, "split": split or {}}
    committed.commit(made.train.target, "checkpoint", parents={"prepared": made.train.prepared}, **about)
    promote(made.root, name, made.train.target, evaluation=made.evaluate.target)
    return made.train.target


def test_two_folders_of_one_name_have_two_registered_models_and_a_link_to_one_has_its(
    root: Root, pictures: Path, tmp_path: Path
) -> None:
    other = write_folder(tmp_path / "other" / "data", train=1, test=1)
    (tmp_path / "link").symlink_to(pictures.parent)
    names = [make(root, folder).registered_model for folder in (pictures, other, tmp_path / "link" / "data")]
    assert names[0] == names[2] != names[1]
    assert all(name.startswith("data-") and len(name) == len("data-01234567") for name in names)
    stages = (plan := make(root, pictures)).train, plan.predict, plan.evaluate
    assert {stage.target.stem for stage in stages} == {"data-images-resnet18"}, "results are called like the folder"


def test_the_raw_dataset_of_a_folder_belongs_to_its_registered_model(root: Root, pictures: Path) -> None:
    made = make(root, pictures)
    champion = crown(made, made.registered_model)
    assert make(root, made.preprocess.raw).registered_model == made.registered_model
    request = model_requests.resolve_prediction(
        storage=root, model="champion", data=made.preprocess.raw, split=None, workers=None
    )
    assert request.predict.checkpoint == champion


def test_a_person_may_name_a_registered_model(root: Root, pictures: Path) -> None:
    made = make(root, pictures)
    crown(made, "fruit", classes=["cat", CLASSES[0]])  # one class in common is enough
    named = make(root, pictures, registered_model="fruit")
    assert (named.registered_model, named.evaluate.target.fingerprint) == ("fruit", made.evaluate.target.fingerprint)
    with pytest.raises(ValueError, match="^--register-as must be 1 to 64 of a-z, 0-9 and '-', got 'a/b'"):
        make(root, pictures, registered_model="a/b")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ({"classes": ["cat", "dog"]}, "knows none of the classes of this data: it knows cat, dog, the data has "),
        ({"image_shape": [32, 32, 3]}, "expects images of 32 x 32 x 3, but this data has 128 x 128 x 3"),
        ({"model": "mine.py:network@0123456789ab"}, "mine.py:network@0123456789ab "),  # the code is not here
    ],
)
def test_data_that_the_champion_cannot_be_compared_on_is_refused_until_a_person_names_another_registered_model(
    root: Root, pictures: Path, model: dict[str, Any], says: str
) -> None:
    champion = crown(make(root, pictures), "fruit", **model)
    with pytest.raises(
        ValueError, match=f"^--register-as: the champion of 'fruit'[,:] {champion}[,:] {says}"
    ) as refused:
        make(root, pictures, "epochs=1", registered_model="fruit")
    assert "\n" not in str(refused.value)
    assert make(root, pictures, registered_model="other-fruit").registered_model == "other-fruit"


@pytest.fixture
def flat(pictures: Path) -> Path:
    """The pictures to train on, in class folders that lie in no split."""
    return pictures / "train"


@pytest.mark.parametrize(
    ("champion", "settings", "says"),
    [
        ({}, ["store=files"], "store of the champion .* is 'pixels', but 'files' is requested"),
        ({}, ["validation_fraction=0.05"], "validation_fraction .* is 0.1, but 0.05 is requested"),
        ({"model": "resnet34"}, [], "model of the champion .* is 'resnet34', but 'resnet18' is requested"),
        ({"image_shape": [32, 32, 3]}, [], r"image_shape .* is \(32, 32, 3\), but \(128, 128, 3\)"),
    ],
)
def test_a_warm_start_from_another_model_or_with_other_validation_rows_is_refused(
    root: Root, pictures: Path, champion: dict[str, Any], settings: list[str], says: str
) -> None:
    made = make(root, pictures)
    with pytest.raises(ValueError, match=f"start=champion: {root} has no champion of '{made.registered_model}' yet"):
        make(root, pictures, "start=champion")
    crown(made, made.registered_model, split=warm_start.split_of(made.recipe), **champion)
    if not champion:
        warm = make(root, pictures, "start=champion")
        assert (warm.train.initial, warm.train.prepared) == (
            made.train.target,
            made.train.prepared,
        ) and warm.train.target != made.train.target
    with pytest.raises(ValueError, match=f"^--set start=champion: .*{says}"):
        make(root, pictures, "start=champion", *settings)


def test_settings_that_made_a_raw_dataset_stay_and_others_are_refused(root: Root, flat: Path) -> None:
    for number in range(30):
        (flat / CLASSES[number % 2] / f"{number}.png").write_bytes(encoded(number, number % 2))
    raw = commit_raw(make(root, flat, "image_size=16", "test_fraction=0.3"))
    for settings in ((), ("image_size=16",), ("test_fraction=0.3",)):
        found = make(root, raw, *settings)
        assert (found.recipe.data.image_size, found.recipe.data.test_fraction) == (16, 0.3), "as the report then tells"
    with pytest.raises(ValueError, match="^--set: image_size is 16 in --data .*, got 96; omit it, or give the folder"):
        make(root, raw, "image_size=96")


def test_a_promotion_by_hand_goes_where_the_checkpoint_was_judged(root: Root, pictures: Path) -> None:
    made = make(root, pictures)
    checkpoint = crown(made, "fruit")
    assert champions.promote(root, checkpoint) == "fruit"
    assert champions.promote(root, checkpoint, name="greens") == "greens"
    lonely = CheckpointURI(root.child("checkpoints/lonely-0123456789ab"))
    committed.commit(lonely, "checkpoint")
    for uri, names in ((checkpoint, "fruit, greens"), (lonely, "no registered model")):
        with pytest.raises(ValueError, match=f"^uri: .* competed in {names}; select one with --register-as NAME$"):
            champions.promote(root, uri)
