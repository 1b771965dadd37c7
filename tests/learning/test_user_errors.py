"""Errors of a user's own code name the lines of their file, wherever it runs."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from storage import files
from storage.uri import URI
from tasks.learning import recipes, user_code, user_errors
from tasks.learning.modeling import Classifier, ModelSpec
from tasks.learning.user_errors import UserCodeError
from tests.runs import CHECKOUT

RECIPE = """
from torch import nn

from storage import files
from storage.uri import URI
from tasks.learning.recipes import Recipe, own


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(10, 2)

    def forward(self, images):
        return self.head(images.flatten(1))


def network(*, image_shape, num_classes):
    return Network()


def layers(*, image_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(10, num_classes))


def read(folder):
    with open(folder / "missing") as file:
        yield file.read()


def asks_storage(folder):
    return files.read(URI(str(folder)).child("missing"))


def out_of_memory(folder):
    raise MemoryError


def recipe(model=network):
    return Recipe(name="mine", data="mnist", model=own(model), epochs=3)


def failing():
    settings = {}
    return recipe(settings["model"])


def wide(*, image_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(16, num_classes + 1))


def plane(*, image_shape, num_classes):
    return nn.Conv2d(1, num_classes, 1)


class Tuple(nn.Sequential):
    def forward(self, images):
        return super().forward(images), None


def pair(*, image_shape, num_classes):
    return Tuple(nn.Flatten(), nn.Linear(16, num_classes))


class InPlace(nn.Sequential):
    def forward(self, images):
        shares = super().forward(images).sigmoid()
        shares += 1
        return shares


def in_place(*, image_shape, num_classes):
    return InPlace(nn.Flatten(), nn.Linear(16, num_classes))


def asks_a_server(images):
    address = "https://me:hidden@host/x?key=hidden"
    raise RuntimeError(f"is {address} up? no answer from {address}")  # see #12


def imports_late(folder):
    import lies_beside_the_recipe
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Any]:
    """Gives what the file of a person's own calls so."""
    monkeypatch.setenv(user_code.FILES, "")
    path = tmp_path / "my_recipe.py"
    path.write_text(f"{RECIPE}\n# {tmp_path}\n")  # what was loaded already is the file that it was first
    return lambda name: getattr(user_code.load(path), name)


def _predict(reference: str) -> None:
    spec = ModelSpec(model=reference, image_shape=(4, 4, 1), classes=("a", "b"), mean=(0.0,), std=(1.0,))
    with user_errors.wrap_user_errors(model=reference):
        Classifier(spec)(torch.zeros(3, 4, 4, 1, dtype=torch.uint8))


def test_a_bug_in_a_model_is_told_with_its_line(own: Callable[[str], Any], tmp_path: Path) -> None:
    with pytest.raises(UserCodeError) as caught:
        _predict(user_code.reference(own("network")))
    said, *where = str(caught.value).splitlines()
    assert said.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x16 and 10x2)")
    assert where == [f"  {tmp_path}/my_recipe.py, line 15, in forward", "    return self.head(images.flatten(1))"]
    assert "torch/nn/modules/linear.py" in caught.value.trace
    again = pickle.loads(pickle.dumps(caught.value))  # as Ray sends it
    assert (str(again), again.trace) == (str(caught.value), caught.value.trace)


def test_comments_and_question_marks_cut_neither_message_nor_traceback_and_secrets_are_masked(
    own: Callable[[str], Any],
) -> None:
    with pytest.raises(UserCodeError) as caught, user_errors.wrap_user_errors():
        own("asks_a_server")(None)
    said = "RuntimeError: is https://***@host/x up? no answer from https://***@host/x"
    assert str(caught.value).splitlines()[0] == said
    assert 'up? no answer from {address}")  # see #12\n' in caught.value.trace
    assert caught.value.trace.endswith(f"\n{said}\n")
    assert "hidden" not in caught.value.trace + str(caught.value)


def test_layers_that_do_not_fit_name_the_function_that_made_them(own: Callable[[str], Any], tmp_path: Path) -> None:
    with pytest.raises(UserCodeError) as caught:
        _predict(user_code.reference(own("layers")))
    assert str(caught.value).splitlines()[1:] == [
        f"  {tmp_path}/my_recipe.py, line 22, in layers, which made the model",
        "    def layers(*, image_shape, num_classes):",
    ]


@pytest.mark.parametrize(
    ("name", "got"),
    [("wide", "torch.float32 of (3, 3)"), ("plane", "torch.float32 of (3, 2, 4, 4)"), ("pair", "tuple")],
)
def test_a_model_that_returns_no_logits_is_told_with_the_function_that_made_it(
    own: Callable[[str], Any], name: str, got: str
) -> None:
    with pytest.raises(UserCodeError) as caught:
        _predict(user_code.reference(own(name)))
    said, where, *_ = str(caught.value).splitlines()
    assert said == f"TypeError: model must return logits: a float tensor of shape (3, 2) (images, classes), got {got}"
    assert where.endswith(f", in {name}, which made the model")


def test_a_model_whose_backward_pass_fails_is_told_with_the_function_that_made_it(own: Callable[[str], Any]) -> None:
    model = user_code.reference(own("in_place"))
    spec = ModelSpec(model=model, image_shape=(4, 4, 1), classes=("a", "b"), mean=(0.0,), std=(1.0,))
    with pytest.raises(UserCodeError) as caught, user_errors.wrap_user_errors(model=model):
        Classifier(spec)(torch.zeros(3, 4, 4, 1, dtype=torch.uint8)).sum().backward()
    said, where, *_ = str(caught.value).splitlines()
    assert "modified by an inplace operation" in said
    assert where.endswith(", in in_place, which made the model")


def test_a_file_that_own_code_opens_and_does_not_find_is_a_bug(own: Callable[[str], Any], tmp_path: Path) -> None:
    with (
        pytest.raises(UserCodeError, match=r"(?s)^FileNotFoundError: .*line 27, in read\n    with open"),
        user_errors.wrap_user_errors(),
    ):
        list(own("read")(tmp_path))


@pytest.mark.parametrize(("name", "kind"), [("asks_storage", FileNotFoundError), ("out_of_memory", MemoryError)])
def test_storage_and_memory_errors_inside_user_code_are_not_wrapped(
    own: Callable[[str], Any], tmp_path: Path, name: str, kind: type[Exception]
) -> None:
    with pytest.raises(kind), user_errors.wrap_user_errors():
        own(name)(tmp_path)


def test_errors_of_other_code_pass() -> None:
    with pytest.raises(FileNotFoundError), user_errors.wrap_user_errors(model="resnet18"):
        files.read(URI("/nowhere/at/all"))


def test_a_recipe_that_fails_is_told_with_its_line(own: Callable[[str], Any], tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"failed: KeyError: 'model' \(line 45: return recipe\(settings\[\"model\"\]\)\)$"
    ):
        recipes.load(f"{tmp_path}/my_recipe.py:failing")


def test_on_a_cluster_the_lines_are_those_of_the_file_where_the_run_began(
    own: Callable[[str], Any], tmp_path: Path
) -> None:
    reference = user_code.reference(own("network"))
    program = (
        "import sys; from tests.learning.test_user_errors import _predict\n"
        "try: _predict(sys.argv[1])\nexcept Exception as error: print(error)"
    )
    with user_code.packaged() as packages:
        env = os.environ | {
            user_code.FILES: "",
            "PYTHONPATH": os.pathsep.join(str(Path(one).parent) for one in packages),
        }
        command = [sys.executable, "-c", program, reference]
        done = subprocess.run(command, env=env, cwd=CHECKOUT, capture_output=True, text=True)
    assert f"{tmp_path}/my_recipe.py, line 15, in forward\n    return self.head" in done.stdout, done.stderr


def test_a_module_beside_the_recipe_that_is_imported_too_late_is_told_where_to_import_it(
    own: Callable[[str], Any],
) -> None:
    with pytest.raises(UserCodeError) as caught, user_errors.wrap_user_errors():
        own("imports_late")(Path())
    assert "import it at the top of the recipe's file" in str(caught.value).splitlines()[0]
