"""Bytes and names that must stay: whoever has results finds them again, and the same files become the same parts."""

from pathlib import Path

import pytest

from storage import manifest
from storage.uri import DatasetURI, Root
from tasks import plan
from tasks.jobs import in_process
from tasks.jobs.spec import PreprocessSpec
from tasks.learning import recipes
from tests.ingested import ingested

PLANNED = {
    "cifar10-resnet18": (
        "datasets/raw/cifar10-4990e596def1",
        "datasets/prepared/cifar10-resnet18-66e34d4c3539",
        "checkpoints/cifar10-resnet18-9414da3b1529",
    ),
    "cifar10-vit": (
        "datasets/raw/cifar10-4990e596def1",
        "datasets/prepared/cifar10-vit-66e34d4c3539",
        "checkpoints/cifar10-vit-e4c7d999cde4",
    ),
    "fashion-mnist-resnet18": (
        "datasets/raw/fashion-mnist-242e285f3679",
        "datasets/prepared/fashion-mnist-resnet18-86f949ede2cf",
        "checkpoints/fashion-mnist-resnet18-07043d1e80b9",
    ),
    "mnist-resnet18": (
        "datasets/raw/mnist-0164ad4b8b70",
        "datasets/prepared/mnist-resnet18-da51354288ff",
        "checkpoints/mnist-resnet18-628447ae9aa4",
    ),
    "mnist-sample-resnet18": (
        "datasets/raw/mnist-sample-ecb2a8e4fbfd",
        "datasets/prepared/mnist-sample-resnet18-2840f053608d",
        "checkpoints/mnist-sample-resnet18-39b1569e97a7",
    ),
}
"""Raw, prepared and checkpoint of every recipe that downloads its data."""
RAW = {
    "train": (
        "aee82ad1f11e07e23cb256131779adedaf68bc0138f6589cffa9cb9d70b1a563",
        "c18c242353c93f0324c2edece7a6b5b2f6f605168c1ad40c148f18e62de62c15",
        "315ae63458d8037806f6712a744a867de12d8c0b2cbed17937c94fa377ab2234",
        "c52d325ab861f92d85b19f11b660be9a56fa0085fb22fd28446fa4abe682a54b",
    ),
    "test": (
        "839c03e4bf9032a40a4739bd219a62eae0680ba05fc22fb346f3612ccfc87fad",
        "11feb825268df127fc0c81dbcc243999359d43a7381db6a2a7a47405818c846f",
        "2271329bef330e95d27fe98665c9f62b702b403a1643c74abae96d13a164f3ab",
        "e4b1437ba801439b68b4ba2b986e3fcd2ee461eeab2077adf697416e162152cd",
    ),
}
"""SHA-256 of each part of the sample's raw dataset."""
PREPARED = {
    "train": (
        "d1de844a3c1980663c4c6da6a73788664a4b7eb76e8d56aa65fc6538e85eca7f",
        "71b83ad53bf75adcd965de042ab779317c5eb1af347ea93705f96de0603c8af1",
        "2993f8bd84b62c995daf9f3c3e7d5c1fd3a2ca8b3fad6d65ca5a71a02a8705cb",
        "d8c91b197d661f74834b3c4d900154775c4a399924c29bdd393eb2d7b6862857",
    ),
    "validation": (
        "242eb6fca00b1e9f8715e6d153a1c7f7df7d1de2fabbd406d14f495a8e305d15",
        "0741ec603eb3b46e4652a7044e3426581c690b6bd582baac132995a9c9b397a0",
        "53dd7fe4f4a6d297808cc3041ec43e6db5c44aab83ed355c550c9523137a02cb",
        "ce65380a119568beac0907ec140560a8f311f19673ca60c8f1f3373cdcd43dbf",
    ),
    "test": RAW["test"],
}
"""The same of its prepared dataset."""


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> plan.Plan:
    """The plan of a run on the sample, whose raw and prepared dataset are committed."""
    root = Root(str(tmp_path_factory.mktemp("golden")))
    made = plan.make(storage=root, recipe=recipes.load("mnist-sample-resnet18"), workers=0)
    ingested(made)
    spec = PreprocessSpec(
        storage=root, deadline_s=600, raw=made.raw, prepared=made.prepared, parameters=made.preprocess_parameters
    )
    in_process.run(spec, tell=lambda line: None)
    return made


@pytest.mark.parametrize("recipe", PLANNED)
def test_a_recipe_keeps_its_uris(tmp_path: Path, recipe: str) -> None:
    made = plan.make(storage=str(tmp_path), recipe=recipes.load(recipe))
    uris = (made.raw, made.prepared, made.checkpoint)
    assert tuple(uri.removeprefix(f"{tmp_path}/") for uri in uris) == PLANNED[recipe]


def test_every_recipe_that_downloads_has_its_uris_here() -> None:
    assert PLANNED.keys() == set(recipes.known()) - {"images-resnet18"}


def test_parts_of_the_sample_keep_their_bytes(sample: plan.Plan) -> None:
    assert (digests(sample.raw), digests(sample.prepared)) == (RAW, PREPARED)


def digests(uri: DatasetURI) -> dict[str | None, tuple[str, ...]]:
    """SHA-256 of the parts of each split, in order."""
    made = manifest.verify(uri)
    return {split: tuple(file.sha256 for file in made.split(split)) for split in {file.split for file in made.files}}
