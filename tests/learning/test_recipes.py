"""Recipes are checked when they are made: a wrong setting is refused by field, value and what is allowed."""

import dataclasses
import json
import operator
from pathlib import Path
from typing import Any

import pytest

from tasks.learning import recipes, sources
from tasks.learning.recipes import SGD, AdamW, Data, FileAugment, Recipe, Training


@pytest.fixture
def recipe() -> Recipe:
    """The default recipe."""
    return recipes.load("mnist-resnet18")


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("epochs=", "--set: epochs must be a valid integer, got ''"),
        ("split_seed=9223372036854775808", "--set: split_seed must be less than or equal to 9223372036854775807, got "),
        ("validation_fraction=1", "--set: validation_fraction must be less than 1, got 1.0"),
        ("learning_rate=nan", "--set: learning_rate must be a finite number, got nan"),
        ("minimum=1.01", "--set: minimum must be less than or equal to 1, got 1.01"),
        ("precision=fp64", "--set: precision must be 'auto', 'fp32' or 'bf16', got 'fp64'"),
        ("source=nosuch", f"--set: source must be one of {', '.join(sources.known())}, got 'nosuch'"),
        ("epoch=3", "--set: there is no recipe field 'epoch'; did you mean 'epochs'? see data-to-model recipes"),
        ("nosuch=1", "--set: there is no recipe field 'nosuch'; the fields are source, image_size, "),
        ("optimizer=adam", "--set: optimizer must be one of adamw, sgd, got 'adam'"),
        ("momentum=0.8", "--set: momentum needs optimizer=sgd, got 0.8 with optimizer=adamw; add --set optimizer=sgd"),
        (
            "decay_fraction=0.5",
            "--set: decay_fraction needs schedule=warmup-constant-decay, got 0.5 with schedule=one-cycle; add --set "
            "schedule=warmup-constant-decay or --set decay_fraction=0.3",
        ),
        ("crop_scale=0.5", "--set: crop_scale needs store=files, got 0.5 with store=pixels; add --set store=files"),
        ("store=files", "--set: store must be pixels for source=mnist, got 'files'; only files given by --data"),
        (
            "gate.epochs=3",
            "--set: there is no recipe field 'gate.epochs'; did you mean 'epochs'? see data-to-model recipes",
        ),
        ("compile=max", "--set: compile must be 'auto', 'on' or 'off', got 'max'"),
        ("step=graph", "--set: step must be auto or eager without device=cuda, got 'graph'"),
        ("start=champion:Own", "--set: start=champion:NAME must be 1 to 64 of a-z, 0-9 and '-', got 'Own'"),
        (
            "start=https://host/w.safetensors",
            "--set: start: must be a path or s3://bucket/prefix, ",
        ),
        (
            "start=weights.pth",
            "--set: start must be random, pretrained, champion, champion:NAME or a .safetensors file, got "
            "'weights.pth'; save a state_dict by safetensors.torch.save_file",
        ),
    ],
)
def test_bad_setting_is_refused_by_field_value_and_what_is_allowed(recipe: Recipe, setting: str, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        recipes.override(recipe, [setting])
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            "warmup_fraction=0.5",
            "warmup_fraction needs schedule=one-cycle, got 0.5 with schedule=warmup-constant-decay",
        ),
        (
            "early_stop=2",
            "early_stop must be 0 with schedule=warmup-constant-decay, whose last epochs bring most, got 2",
        ),
    ],
)
def test_what_a_constant_learning_rate_has_no_use_for_is_refused(recipe: Recipe, other: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        recipes.override(recipe, ["schedule=warmup-constant-decay", other])


@pytest.mark.parametrize(
    ("spelled", "start"),
    [
        ("random", recipes.Random()),
        ("pretrained", recipes.Pretrained()),
        ("champion", recipes.Champion()),
        ("champion:cifar10", recipes.Champion(registered_model="cifar10")),
        ("s3://bucket/lite0.safetensors", recipes.Weights(file="s3://bucket/lite0.safetensors")),
        ("/weights/lite0.safetensors", recipes.Weights(file="/weights/lite0.safetensors")),
    ],
)
def test_start_is_one_text_from_which_changes_and_json_make_the_same_recipe(
    recipe: Recipe, spelled: str, start: Any
) -> None:
    changed = recipes.override(recipe, [f"start={spelled}"])
    assert changed.training.start == start
    assert recipes.changes(changed) == ({} if spelled == "random" else {"start": spelled})
    assert recipes.override(recipe, recipes.changes(changed)) == changed == recipes.from_dict(changed.to_dict())


def test_file_of_weights_is_made_absolute_and_its_path_decides_no_result(recipe: Recipe) -> None:
    changed = recipes.override(recipe, {"training.start": "lite0.safetensors"})
    assert changed.training.start == recipes.Weights(file=str(Path.cwd() / "lite0.safetensors"))
    assert dataclasses.replace(changed.training, start=recipe.training.start) == recipe.training


@pytest.mark.parametrize(
    ("cls", "field", "value"),
    [(Training, "epochs", 1.0), (Training, "epochs", True), (AdamW, "learning_rate", "0.1"), (Data, "source", 5)],
)
def test_value_of_another_type_is_refused(cls: Any, field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"^{field} must be .*, got {value!r}$"):
        cls(**{field: value})


@pytest.mark.parametrize("name", ["", "UPPER", "a/b", "a" * 65])
def test_name_that_is_no_folder_name_is_refused(recipe: Recipe, name: str) -> None:
    with pytest.raises(ValueError, match="name must be 1 to 64 of"):
        dataclasses.replace(recipe, name=name)


@pytest.mark.parametrize(
    ("setting", "groups", "value"),
    [
        ("epochs=5", "training", 5),
        ("learning_rate=1e-3", "training.optimizer", 0.001),
        ("loader=ray_data", "training", "ray-data"),
        ("compile=on", "training", "on"),
        ("gate.minimum=0.5", "gate", 0.5),
        ("batch-size=8", "training", 8),
    ],
)
def test_settings_are_converted_to_the_types_of_their_fields(
    recipe: Recipe, setting: str, groups: str, value: Any
) -> None:
    changed = recipes.override(recipe, [setting])
    field = setting.partition("=")[0].rpartition(".")[2].replace("-", "_")
    converted = getattr(operator.attrgetter(groups)(changed), field)
    assert converted == value and type(converted) is type(value)


@pytest.mark.parametrize("settings", [["optimizer=sgd", "momentum=0.8"], ["momentum=0.8", "optimizer=sgd"]])
def test_another_variant_keeps_the_fields_that_it_shares(settings: list[str]) -> None:
    recipe = recipes.load("cifar10-resnet18")
    changed = recipes.override(recipe, settings)
    assert changed.finetuning.optimizer == SGD(learning_rate=4e-3, weight_decay=5e-2, momentum=0.8)
    assert recipes.changes(changed) == {"optimizer": "sgd", "momentum": 0.8}


def test_images_stored_as_files_have_an_augmentation_of_their_own() -> None:
    recipe = recipes.override(recipes.load("images-resnet18"), ["crop_scale=0.3", "store=files"])
    assert recipe.finetuning.augment == FileAugment(max_shift=4, crop_scale=0.3)
    assert recipes.override(recipe, {"store": "pixels"}) == recipes.load("images-resnet18")
    with pytest.raises(ValueError, match=r"augment must be FileAugment\(...\) with store=files, got PixelAugment"):
        dataclasses.replace(recipe, training=Training(epochs=1))


@pytest.mark.parametrize("name", recipes.known())
def test_every_recipe_is_named_as_it_is_called_and_survives_json_and_its_changes(name: str) -> None:
    recipe = recipes.load(name)
    assert recipe.name == name and recipes.changes(recipe) == {}
    assert recipes.from_dict(json.loads(json.dumps(recipe.to_dict()))) == recipe


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"nosuch": 1}, "nosuch: Unexpected"),
        ({"model": None}, "model must be a val"),
        ({"training": {"kind": "finetune"}}, "epochs: F"),
    ],
)
def test_field_that_is_unknown_or_missing_is_named_in_one_line(
    recipe: Recipe, changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{message}.*$") as caught:
        recipes.from_dict(recipe.to_dict() | changed)
    assert "\n" not in str(caught.value)
