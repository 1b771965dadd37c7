"""Names of flow runs."""

from typing import Any

import pytest

from flows import pipeline
from flows.predict import predict
from tasks.learning import user_code
from tasks.orchestration.prefect_options import name_run, run_name


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        (
            {"recipe": "mnist-resnet18", "settings": {"epochs": 5, "seed": 1}, "workers": 0, "refresh": True},
            "mnist-resnet18 epochs=5 learning_rate=0.002 seed=1 refresh workers=0",
        ),
        (
            {"recipe": "images-resnet18", "data": "s3://bucket/photos/flowers/", "settings": {"epochs": 5}},
            "images-resnet18 on flowers epochs=5 learning_rate=0.002",
        ),
        ({"recipe": "/home/ada/mine.py:recipe", "settings": {"epochs": 5}}, "mine.py:recipe epochs=5"),
        ({"recipe": "no-such-recipe"}, "no-such-recipe"),
        (
            {"recipe": "mnist-resnet18", "data": "s3://key:secret@bucket"},
            "mnist-resnet18 on ***@bucket epochs=3 learning_rate=0.002",
        ),
        (
            {"recipe": "mnist-resnet18", "settings": {"epochs": "5\n" * 500}},
            ("mnist-resnet18 epochs=" + "5 " * 500)[:200],
        ),
        (
            {
                "model": "champion:flowers",
                "data": "s3://b/datasets/raw/mnist-0164",
                "split": "test",
                "workers": "1:4",
            },
            "champion:flowers on mnist-0164 test workers=1:4",
        ),
    ],
)
def test_a_run_is_called_by_its_recipe_and_main_settings(parameters: dict[str, Any], name: str) -> None:
    assert name_run(parameters) == name


def test_a_recipe_that_cannot_be_loaded_is_left_to_the_flow_to_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(user_code.FILES, "/no/such/file.py")
    assert name_run({"recipe": "mnist-resnet18", "settings": {"epochs": 5}}) == "mnist-resnet18 epochs=5"


@pytest.mark.parametrize(
    "flow", [pipeline.mnist, pipeline.cifar10, pipeline.images, predict], ids=lambda flow: flow.name
)
def test_every_flow_names_its_runs(flow: Any) -> None:
    assert flow.flow_run_name is run_name
