"""Code outside the project: found by file, name and digest, refused in one line, never used in another version."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage.uri import ALLOWED_ROOTS
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
def file_with_modules(file: Path) -> Path:
    """A recipe that imports a module and packages beside it; `torch` without `__init__.py` is the one installed."""
    for folder in ("layers", "plain/deep", "torch"):
        (file.parent / folder).mkdir(parents=True)
    for name, text in (
        ("sizes.py", "OUT = 2\n"),
        ("unused.py", "raise AssertionError\n"),
        ("torch/unused.py", "raise AssertionError\n"),
        ("plain/__init__.py", ""),
        ("plain/deep/__init__.py", ""),
        ("plain/deep/flags.py", "BIAS = True\n"),
        ("layers/__init__.py", "from .head import head\n"),
        (
            "layers/head.py",
            "import plain.deep.flags\nimport sizes\nfrom torch import nn\n\n\ndef head():\n"
            "    return nn.Linear(16, sizes.OUT, bias=plain.deep.flags.BIAS)\n",
        ),
    ):
        (file.parent / name).write_text(text)
    text = RECIPE.replace("nn.Linear(16, num_classes)", "layers.head()")
    file.write_text(text.replace("from torch import nn", "import layers\nfrom torch import nn"))
    return file


def width(model: str) -> int:
    return int(models.build(model, image_shape=(4, 4, 1), num_classes=2)[1].out_features)  # type: ignore[index]


def test_modules_beside_the_recipe_are_part_of_the_model_and_each_version_keeps_its_own(
    file_with_modules: Path,
) -> None:
    folder = file_with_modules.parent
    before = recipes.load(f"{file_with_modules}:recipe").model
    (folder / "unused.py").write_text("changed = 1\n")
    assert recipes.load(f"{file_with_modules}:recipe").model == before
    (folder / "sizes.py").write_text("OUT = 3\n")
    after = recipes.load(f"{file_with_modules}:recipe").model
    assert after != before and (width(before), width(after)) == (2, 3)
    (folder / "plain/deep/flags.py").write_text("BIAS = False\n")
    assert recipes.load(f"{file_with_modules}:recipe").model != after
    assert not {"sizes", "layers", "plain", "plain.deep"} & set(sys.modules) and not list(folder.rglob("*.pyc"))


def test_package_without_init_is_refused_since_its_code_would_not_count(file: Path) -> None:
    (file.parent / "parts").mkdir()
    (file.parent / "parts/sizes.py").write_text("OUT = 2\n")
    file.write_text(f"from parts import sizes\n{RECIPE}")
    with pytest.raises(ValueError, match="parts is imported as a package: add an empty .*/parts/__init__.py"):
        recipes.load(f"{file}:recipe")


@pytest.mark.parametrize("shipped", [False, True])
def test_another_process_finds_the_modules_too_and_refuses_other_ones(tmp_path: Path, shipped: bool) -> None:
    (tmp_path / "sizes.py").write_text("OUT = 2\n")
    (tmp_path / "my_recipe.py").write_text(
        "import sizes\nfrom tasks.learning.recipes import Data, Recipe, Training, own\n\n\ndef network(**_):\n"
        "    return f'{sizes.OUT} outputs'\n\n\ndef recipe():\n"
        "    return Recipe(name='mine', data=Data(source='mnist'), model=own(network), training=Training(epochs=3))\n"
    )
    name = recipes.load(f"{tmp_path}/my_recipe.py:recipe").model
    program = f"from tasks.learning import user_code; print(user_code.resolve({name!r})())"
    with user_code.packaged() as packages:
        paths = [str(CHECKOUT), *({str(Path(package).parent) for package in packages} if shipped else ())]
        listed = "" if shipped else f"{tmp_path}/my_recipe.py"
        env = {**os.environ, user_code.FILES: listed, "PYTHONPATH": os.pathsep.join(paths)}
        ran = subprocess.run([sys.executable, "-c", program], env=env, cwd="/", capture_output=True)
        assert ran.stdout == b"2 outputs\n", ran.stderr
        (tmp_path / "sizes.py").write_text("OUT = 3\n")
        ran = subprocess.run([sys.executable, "-c", program], env=env, cwd="/", capture_output=True)
        assert (ran.stdout == b"2 outputs\n") == shipped
        assert shipped or b"to the unchanged my_recipe.py, with its modules beside it" in ran.stderr


def test_named_files_are_part_of_the_model_travel_with_it_and_a_checkpoint_needs_none(file: Path) -> None:
    weights = file.with_name("weights.bin")
    file.write_text(
        f"from pathlib import Path\n{RECIPE}\n"
        "def pretrained_network(*, image_shape, num_classes, pretrained):\n"
        "    if pretrained:\n"
        "        Path(__file__).with_name('weights.bin').read_bytes()\n"
        "    return network(image_shape=image_shape, num_classes=num_classes)\n\n\n"
        "REST = {'name': 'mine', 'data': Data(source='mnist'), 'training': Training(epochs=3)}\n\n\ndef tuned():\n"
        "    return Recipe(model=own(pretrained_network, files=['weights.bin']), **REST)\n"
        "\n\ndef forgetful():\n"
        "    return Recipe(model=own(network, files=['weights.bin']), **REST)\n"
    )
    with pytest.raises(ValueError, match=f"own\\(\\): files: there is no file {weights}"):
        recipes.load(f"{file}:tuned")
    weights.write_bytes(b"first")
    first = recipes.load(f"{file}:tuned").model
    assert recipes.load(f"{file}:tuned").model == first
    with user_code.packaged() as packages:
        assert b"first" in [
            (Path(package) / "weights.bin").read_bytes()
            for package in packages
            if (Path(package) / "weights.bin").exists()
        ]
    weights.write_bytes(b"other weights")
    other = recipes.load(f"{file}:tuned").model
    assert first != other and first.partition("-")[0] == other.partition("-")[0]
    with pytest.raises(ValueError, match="network reads files, so it must take the parameter 'pretrained'"):
        recipes.load(f"{file}:forgetful")
    weights.unlink()
    assert width(first) == 2, "as a checkpoint is loaded"
    with pytest.raises(FileNotFoundError):
        models.build(first, image_shape=(4, 4, 1), num_classes=2, pretrained=True)


def test_a_path_relative_to_the_folder_of_the_command_is_made_absolute_for_other_processes(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    monkeypatch.setenv(user_code.FILES, "my_recipe.py")
    user_code.check_listed()
    assert os.environ[user_code.FILES] == str(file)
    monkeypatch.setenv(user_code.FILES, "nosuch.py")
    with pytest.raises(ValueError, match=f"^{user_code.FILES}: there is no file {file.parent}/nosuch.py"):
        user_code.check_listed()


def test_a_model_whose_file_is_not_here_is_refused_with_what_to_do(file: Path) -> None:
    name = recipes.load(f"{file}:recipe").model[:-12] + "0" * 12
    with pytest.raises(
        ValueError, match=f"{name} is code outside .* set PIPELINE_USER_CODE to the unchanged my_recipe.py"
    ):
        models.check_known(name)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("{file}:nosuch", "--recipe: there is no function 'nosuch' in {file}"),
        ("{folder}/none.py:recipe", "--recipe: {folder}/none.py cannot be read: No such file or directory"),
        ("{folder}/broken.py:recipe", "--recipe: {folder}/broken.py cannot be imported: SyntaxError: "),
        ("{file}:network", "--recipe: {file}:network() failed: TypeError: "),
        ("{file}:failing", "--recipe: {file}:failing() failed: KeyError: 'x'"),
        ("{file}:wrong", "--recipe: {file}:wrong() failed: ValueError: model must be a function that returns"),
        ("{file}:other", "--recipe: {file}:other() failed: ValueError: own() takes a function, class or object"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_in_one_line(file: Path, name: str, says: str) -> None:
    (file.parent / "broken.py").write_text("def recipe(:\n")
    places = {"file": file, "folder": file.parent}
    with pytest.raises(ValueError) as caught:
        recipes.load(name.format(**places))
    assert str(caught.value).startswith(says.format(**places)) and "\n" not in str(caught.value)


class TestAllowedRoots:
    """Nothing outside them is executed."""

    @pytest.fixture
    def allowed(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "allowed"
        folder.mkdir()
        monkeypatch.setenv(ALLOWED_ROOTS, f"{folder},s3://bucket/prefix")
        return folder

    @pytest.fixture
    def outside(self, tmp_path: Path) -> Path:
        """A file that says so when it is executed."""
        path = tmp_path / "outside.py"
        path.write_text(f"{RECIPE}\nopen({str(tmp_path / 'executed')!r}, 'w').close()\n")
        return path

    def test_one_outside_is_refused_by_name_also_behind_a_link(self, allowed: Path, outside: Path) -> None:
        with pytest.raises(ValueError, match=f"^--recipe: {outside} is outside {ALLOWED_ROOTS}: {allowed}, s3://"):
            recipes.load(f"{outside}:recipe")
        link = allowed / "mine.py"
        link.symlink_to(outside)
        with pytest.raises(ValueError, match=f"^--recipe: {link} is a link: {outside} is outside"):
            recipes.load(f"{link}:recipe")
        assert not (outside.parent / "executed").exists()

    def test_one_inside_is_taken_also_through_a_link(self, allowed: Path, outside: Path) -> None:
        (allowed / "mine.py").write_text(RECIPE)
        link = outside.parent / "link.py"
        link.symlink_to(allowed / "mine.py")
        assert recipes.load(f"{link}:recipe").name == recipes.load(f"{allowed}/mine.py:recipe").name == "mine"

    def test_a_file_outside_that_the_variable_names_is_refused_and_not_executed(
        self, allowed: Path, outside: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(user_code.FILES, str(outside))
        sha256 = hashlib.sha256(outside.read_bytes()).hexdigest()
        refused = f"^{user_code.FILES}: {outside} is outside {ALLOWED_ROOTS}: {allowed}"
        for use in (
            lambda: user_code.resolve(f"outside.py:network@{sha256[:12]}"),
            lambda: recipes.load("mnist-resnet18"),
        ):
            with pytest.raises(ValueError, match=refused):
                use()
        with pytest.raises(ValueError, match=user_code.FILES), user_code.packaged():
            pytest.fail("it would go to a cluster")
        assert not (outside.parent / "executed").exists()


def test_a_factory_that_returns_something_else_is_refused(file: Path) -> None:
    name = recipes.load(f"{file}:recipe").model.replace("network", "no_network")
    with pytest.raises(TypeError, match=r"no_network@.* must return a torch.nn.Module, got str"):
        models.build(name, image_shape=(4, 4, 1), num_classes=2)
