"""Errors that pass through the user's file name its lines, wherever it runs; other errors pass unchanged."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from storage.statistics import ModelSpec
from tasks.learning import user_code
from tasks.learning.modeling import Classifier
from tasks.learning.user_code import UserCodeError

RECIPE = """
from torch import nn
from torch.distributed import DistBackendError


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


def raises(error):
    raise error


def opens(folder):
    return (folder / "missing").read_bytes()


def imports_late():
    import lies_beside_the_recipe
"""


@pytest.fixture
def user_module(tmp_path: Path) -> Any:
    path = tmp_path / "my_recipe.py"
    path.write_text(f"{RECIPE}\n# {tmp_path}\n")  # a module is loaded once per content
    return user_code.load(path)


def predict(reference: str) -> None:
    """Run images of the wrong size through the model `reference`."""
    spec = ModelSpec(model=reference, image_shape=(4, 4, 1), classes=("a", "b"), mean=(0.0,), std=(1.0,))
    with user_code.wrap_user_errors():
        Classifier(spec)(torch.zeros(3, 4, 4, 1, dtype=torch.uint8))


def error_of(call: Callable[..., Any], *arguments: Any) -> UserCodeError:
    with pytest.raises(UserCodeError) as caught, user_code.wrap_user_errors():
        call(*arguments)
    return caught.value


def test_error_in_a_model_shows_its_line_and_keeps_the_traceback(user_module: Any, tmp_path: Path) -> None:
    error = error_of(predict, user_code.reference(user_module.network))
    message, *lines = str(error).splitlines()
    assert message.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x16 and 10x2)")
    assert lines == [f"  {tmp_path}/my_recipe.py, line 12, in forward", "    return self.head(images.flatten(1))"]
    assert "torch/nn/modules/linear.py" in error.trace
    unpickled = pickle.loads(pickle.dumps(error))  # as Ray sends it
    assert (str(unpickled), unpickled.trace) == (str(error), error.trace)


def test_error_in_a_library_s_layer_shows_the_layer_and_where_the_model_was_built(
    user_module: Any, tmp_path: Path
) -> None:
    message, *lines = str(error_of(predict, user_code.reference(user_module.layers))).splitlines()
    assert message.startswith("RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x16 and 10x2)")
    layer = "    Linear(in_features=10, out_features=2, bias=True)"
    assert lines == [f"  {tmp_path}/my_recipe.py, line 19, in layers", layer]


def test_missing_file_or_module_is_an_error_of_the_code_that_needs_it(user_module: Any, tmp_path: Path) -> None:
    assert str(error_of(user_module.opens, tmp_path)).startswith("FileNotFoundError: ")
    assert "put it into a folder with recipe.py" in str(error_of(user_module.imports_late)).splitlines()[0]


def test_errors_of_memory_peers_and_this_project_or_outside_the_users_file_pass(user_module: Any) -> None:
    for error in (MemoryError(), user_module.DistBackendError("lost"), UserCodeError("once")):
        with pytest.raises(type(error)) as caught, user_code.wrap_user_errors():
            user_module.raises(error)
        assert caught.value is error
    with pytest.raises(FileNotFoundError), user_code.wrap_user_errors():
        Path("/nowhere/at/all").read_bytes()
