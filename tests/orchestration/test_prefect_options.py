"""Names of flow runs."""

from typing import Any

import pytest

from flows import pipeline
from flows.predict import predict
from tasks.orchestration.prefect_options import name_run, run_name


@pytest.mark.parametrize(
    ("parameters", "name"),
    [
        (
            {"recipe": "mnist-resnet18", "settings": {"epochs": 5, "seed": 1}, "workers": 0, "refresh": True},
            "mnist-resnet18 epochs=5 seed=1",
        ),
        (
            {"recipe": "images-resnet18", "data": "s3://bucket/photos/flowers/", "settings": {"epochs": 5}},
            "images-resnet18 on flowers epochs=5",
        ),
        ({"recipe": "/home/ada/mine.py:recipe", "settings": {"epochs": 5}}, "mine.py:recipe epochs=5"),
        ({"recipe": "mnist-resnet18", "data": "s3://key:secret@bucket"}, "mnist-resnet18 on ***@bucket"),
        ({"recipe": "a", "settings": {"epochs": "5\n" * 500}}, ("a epochs=" + "5 " * 500)[:200]),
        ({"model": "champion:a", "data": "s3://b/datasets/raw/mnist-0164"}, "champion:a on mnist-0164"),
    ],
)
def test_a_run_is_called_by_its_recipe_and_changed_settings(parameters: dict[str, Any], name: str) -> None:
    assert name_run(parameters) == name


@pytest.mark.parametrize(
    "flow", [pipeline.mnist, pipeline.cifar10, pipeline.images, predict], ids=lambda flow: flow.name
)
def test_every_flow_names_its_runs(flow: Any) -> None:
    assert flow.flow_run_name is run_name
