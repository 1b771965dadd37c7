"""Code outside the project: found by file, name and digest, refused in one line, never taken from another version."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.learning import code, datasets, models, recipes
from tests.runs import CHECKOUT

RECIPE = """
from torch import nn

from tasks.learning.datasets import DataSet
from tasks.learning.recipes import Recipe, own

DIGITS = DataSet(
    name="my-digits", files=(), mirrors=(), classes=("a", "b"), image_shape=(4, 4, 1), read=lambda folder: iter(())
)


def network(*, image_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, num_classes))


def no_network(*, image_shape, num_classes):
    return "a network"


def recipe():
    return Recipe(name="mine", data=own(DIGITS), model=own(network), epochs=3)


def wrong():
    return Recipe(name="mine", data="mnist", model=own(DIGITS), epochs=3)


def failing():
    raise KeyError("x")


def other():
    return own(print)
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(code.FILES, "")
    path = tmp_path / "my_recipe.py"
    path.write_text(RECIPE)
    return path


def test_a_recipe_of_ones_own_brings_its_model_and_its_data_set(file: Path) -> None:
    recipe = recipes.load(f"{file}:recipe")
    assert recipe.model.startswith("my_recipe.py:network@") and recipe.origin == f"{file}:recipe"
    assert models.build(recipe.model, image_shape=(4, 4, 1), num_classes=2)[1].out_features == 2  # type: ignore[index]
    assert datasets.load(recipe.data).name == datasets.name_of(recipe.data) == "my-digits"
    assert recipes.changes(recipes.override(recipe, {"epochs": 5})) == {"epochs": 5}


def test_another_version_of_the_file_is_another_model(file: Path) -> None:
    before = recipes.load(f"{file}:recipe").model
    file.write_text(RECIPE + "\n# changed\n")
    assert recipes.load(f"{file}:recipe").model != before


@pytest.mark.parametrize("shipped", [False, True])
def test_another_process_finds_the_model_where_it_is_told_to_look_or_in_what_was_shipped(
    file: Path, shipped: bool
) -> None:
    name = recipes.load(f"{file}:recipe").model
    program = f"from tasks.learning import models; print(models.build({name!r}, image_shape=(4, 4, 1), num_classes=2))"
    with code.packaged() as packages:
        paths = [str(CHECKOUT), *({str(Path(package).parent) for package in packages} if shipped else ())]
        env = {**os.environ, code.FILES: "" if shipped else str(file), "PYTHONPATH": os.pathsep.join(paths)}
        ran = subprocess.run([sys.executable, "-c", program], env=env, cwd=file.parent.parent, capture_output=True)
    assert b"Linear(in_features=16, out_features=2" in ran.stdout, ran.stderr


def test_a_file_that_was_only_named_goes_to_a_cluster_too(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text(f"{RECIPE}\nNAMED = True\n")
    monkeypatch.setenv(code.FILES, str(file))
    with code.packaged() as packages:
        assert file.read_bytes() in [Path(package, "__init__.py").read_bytes() for package in packages]


def test_what_shipped_code_lacks_is_told_by_its_own_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pipeline_code_0123456789ab").mkdir()
    (tmp_path / "pipeline_code_0123456789ab" / "__init__.py").write_text("import no_such_package\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        code.resolve("mine.py:network@0123456789ab")


def test_a_model_whose_file_is_not_here_is_refused_with_what_to_do(file: Path) -> None:
    name = recipes.load(f"{file}:recipe").model[:-12] + "0" * 12
    with pytest.raises(ValueError, match=f"{name} is code outside .* none of the files in PIPELINE_CODE is that one"):
        models.check_known(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("{file}:nosuch", "--recipe: there is no function 'nosuch' in {file}"),
        ("{folder}/none.py:recipe", "--recipe: {folder}/none.py cannot be read: No such file or directory"),
        ("{folder}/broken.py:recipe", "--recipe: {folder}/broken.py cannot be imported: SyntaxError: "),
        ("{folder}/a b.py:recipe", "--recipe: a file of code must be called by letters"),
        ("{file}:network", "--recipe: {file}:network() failed: TypeError: "),
        ("{file}:failing", "--recipe: {file}:failing() failed: KeyError: 'x'"),
        ("{file}:wrong", "--recipe: {file}:wrong() failed: ValueError: model must be a function that returns"),
        ("{file}:other", "--recipe: {file}:other() failed: ValueError: own() takes what a recipe's file has"),
        ("{file}:DIGITS", "--recipe: there is no function 'DIGITS' in {file}"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(file: Path, name: str, says: str) -> None:
    (file.parent / "broken.py").write_text("def recipe(:\n")
    places = {"file": file, "folder": file.parent}
    with pytest.raises(ValueError) as caught:
        recipes.load(name.format(**places))
    assert str(caught.value).startswith(says.format(**places)) and "\n" not in str(caught.value)


def test_a_factory_that_returns_something_else_is_refused(file: Path) -> None:
    name = recipes.load(f"{file}:recipe").model.replace("network", "no_network")
    with pytest.raises(TypeError, match=r"no_network@.* must return a torch.nn.Module, got str"):
        models.build(name, image_shape=(4, 4, 1), num_classes=2)
