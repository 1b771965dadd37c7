"""Code outside the project: found by file, name and digest, refused in one line, never used in another version."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.learning import models, recipes, sources, user_code
from tests.runs import CHECKOUT

RECIPE = """
from torch import nn

from tasks.learning.sources import Source
from tasks.learning.recipes import Data, Recipe, Training, own

DIGITS = Source(
    name="my-digits", files=(), mirrors=(), classes=("a", "b"), image_shape=(4, 4, 1), read=lambda folder: iter(())
)


def network(*, image_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, num_classes))


def no_network(*, image_shape, num_classes):
    return "a network"


def recipe():
    return Recipe(name="mine", data=Data(source=own(DIGITS)), model=own(network), training=Training(epochs=3))


def wrong():
    return Recipe(name="mine", data=Data(source="mnist"), model=own(DIGITS), training=Training(epochs=3))


def failing():
    raise KeyError("x")


def other():
    return own(print)
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "my_recipe.py"
    path.write_text(RECIPE)
    return path


def test_a_recipe_of_ones_own_brings_its_model_and_its_source(file: Path) -> None:
    recipe = recipes.load(f"{file}:recipe")
    assert recipe.model.startswith("my_recipe.py:network@") and recipe.origin == f"{file}:recipe"
    assert models.build(recipe.model, image_shape=(4, 4, 1), num_classes=2)[1].out_features == 2  # type: ignore[index]
    assert sources.load(recipe.data.source).name == sources.name_of(recipe.data.source) == "my-digits"
    assert recipes.changes(recipes.override(recipe, {"epochs": 5})) == {"epochs": 5}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recipe in a folder, with modules and a file that it reads."""
    folder = tmp_path / "my_model"
    (folder / "parts").mkdir(parents=True)
    (folder / "__pycache__").mkdir()
    for name, text in (
        ("sizes.py", "OUT = 2\n"),
        (
            "parts/head.py",
            "from torch import nn\n\nfrom ..sizes import OUT\n\n\ndef head():\n    return nn.Linear(16, OUT)\n",
        ),
        ("bias.txt", "1"),
        ("recipe.py", RECIPE.replace("nn.Linear(16, num_classes)", "head.head()")),
    ):
        (folder / name).write_text(text)
    main = folder / "recipe.py"
    main.write_text(f"from pathlib import Path\n\nfrom .parts import head\n{main.read_text()}\n{READING}")
    return folder


READING = """
def reading(*, image_shape, num_classes, pretrained):
    bias = Path(__file__).with_name("bias.txt").read_text() if pretrained else 0
    model = network(image_shape=image_shape, num_classes=num_classes)
    nn.init.constant_(model[1].bias, float(bias))
    return model
"""


def build(model: str, **options: bool) -> Any:
    return models.build(model, image_shape=(4, 4, 1), num_classes=2, **options)[1]  # type: ignore[index]


def test_every_file_of_a_folder_is_part_of_the_model_and_each_version_keeps_its_own(folder: Path) -> None:
    name = f"{folder}:recipe"
    before = recipes.load(name).model
    assert before.startswith("my_model:network@") and recipes.load(name).model == before
    (folder / "__pycache__/any.pyc").write_text("compiled")
    (folder / ".hidden").write_text("an editor's")
    assert recipes.load(name).model == before
    (folder / "sizes.py").write_text("OUT = 30\n")
    after = recipes.load(name).model
    assert (build(before).out_features, build(after).out_features) == (2, 30)
    (folder / "bias.txt").write_text("5")
    other = recipes.load(name).model
    assert len({before, after, other}) == 3
    reading = other.replace("network", "reading")
    assert build(reading, pretrained=True).bias[0] == 5 and build(reading).bias[0] == 0


@pytest.mark.parametrize("shipped", [False, True])
@pytest.mark.slow
def test_another_process_finds_a_folder_too_and_refuses_another_version(folder: Path, shipped: bool) -> None:
    name = recipes.load(f"{folder}:recipe").model.replace("network", "reading")
    program = "from tasks.learning import models\n"
    program += f"print(models.build({name!r}, image_shape=(4, 4, 1), num_classes=2, pretrained=True)[1].bias.tolist())"
    with user_code.packaged() as packages:
        paths = [str(CHECKOUT), *({str(Path(package).parent) for package in packages} if shipped else ())]
        env = {**os.environ, user_code.FILES: "" if shipped else str(folder), "PYTHONPATH": os.pathsep.join(paths)}
        ran = subprocess.run([sys.executable, "-c", program], env=env, cwd="/", capture_output=True)
        assert ran.stdout == b"[1.0, 1.0]\n", ran.stderr
        (folder / "sizes.py").write_text("OUT = 3\n")
        ran = subprocess.run([sys.executable, "-c", program], env=env, cwd="/", capture_output=True)
        assert (ran.stdout == b"[1.0, 1.0]\n") == shipped
        assert shipped or b"to the unchanged my_model; none of its paths" in ran.stderr


def test_a_path_relative_to_the_folder_of_the_command_is_made_absolute_for_other_processes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    monkeypatch.setenv(user_code.FILES, "my_recipe.py")
    user_code.check_listed()
    assert os.environ[user_code.FILES] == str(file)
    monkeypatch.setenv(user_code.FILES, "nosuch.py")
    with pytest.raises(
        ValueError, match=f"^{user_code.FILES}: there is no file or folder of a recipe {file.parent}/nosuch.py"
    ):
        user_code.check_listed()


def test_a_model_whose_file_is_not_here_is_refused_with_what_to_do(file: Path) -> None:
    name = recipes.load(f"{file}:recipe").model[:-12] + "0" * 12
    with pytest.raises(
        ValueError, match=f"{name} is code outside .* set PIPELINE_USER_CODE to the unchanged my_recipe.py"
    ):
        models.check_known(name)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("{file}:nosuch", "--recipe: there is no function 'nosuch' in {file}"),
        ("{folder}/none.py:recipe", "--recipe: {folder}/none.py cannot be read: No such file or directory"),
        ("{folder}:recipe", "--recipe: {folder} must be a Python file, or a folder with recipe.py"),
        ("{folder}/broken.py:recipe", "--recipe: {folder}/broken.py cannot be imported: SyntaxError: "),
        (
            "{folder}/lonely.py:recipe",
            "--recipe: {folder}/lonely.py cannot be imported: ModuleNotFoundError: No module named 'layers' (line 1: "
            "import layers); install it, or put it into a folder with recipe.py, name the folder and",
        ),
        ("{folder}/full:recipe", "--recipe: {folder}/full contains results of runs; use a --storage outside"),
        ("{file}:network", "--recipe: {file}:network() failed: TypeError: "),
        ("{file}:failing", "--recipe: {file}:failing() failed: KeyError: 'x' (line 29: raise KeyError"),
        ("{file}:wrong", "--recipe: {file}:wrong() failed: ValueError: model must be a function that returns"),
        ("{file}:other", "--recipe: {file}:other() failed: ValueError: own() takes a function, class or object"),
    ],
)
def test_a_wrong_file_is_refused_in_one_line(file: Path, name: str, message: str) -> None:
    (file.parent / "broken.py").write_text("def recipe(:\n")
    (file.parent / "lonely.py").write_text("import layers\n")
    (file.parent / "full/data").mkdir(parents=True)
    for written in ("recipe.py", "data/_manifest.json"):
        (file.parent / "full" / written).touch()
    places = {"file": file, "folder": file.parent}
    with pytest.raises(ValueError) as caught:
        recipes.load(name.format(**places))
    assert str(caught.value).startswith(message.format(**places)) and "\n" not in str(caught.value)


def test_a_factory_that_returns_something_else_is_refused(file: Path) -> None:
    name = recipes.load(f"{file}:recipe").model.replace("network", "no_network")
    with pytest.raises(TypeError, match=r"no_network@.* must return a torch.nn.Module, got str"):
        models.build(name, image_shape=(4, 4, 1), num_classes=2)
