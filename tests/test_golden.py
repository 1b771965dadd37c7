"""Bytes that must not change: the same files give the same parts."""

import pytest

from storage import manifest
from storage.kinds import DatasetURI
from storage.uri import Root
from tasks.learning import recipes
from tasks.planning import make_plan, plan
from tasks.preprocess import preprocess
from tasks.runners.runner import InProcessRunner
from tests.ingested import ingested

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
        "aec13e5f6e8b9837f6c690bccfa00a8c4ee3c6ac814f10f130b87ac28cb8e835",
        "8c7c1122a6c995a65228b0c796e41b37fa0a5f2280767c858f27ac0965c8be04",
        "75c09d6768cc63fe43bffcfba2b5ce175c204fb09e15603f14ba3a3d703e69e6",
        "a6364490ed612ff0e64ca51e215e63aa01a31c2bea1efadc25115e425f23aa5c",
    ),
    "validation": (
        "3220be43b9e164852e134ac49efb3dcc0b5529832f9b03bc267e19641ab5c4b9",
        "f5bd895af2044a57b1f3b56a315df083c9a967665c5d8c399d87f55b45ec7a73",
        "cc361a10dcce2ba057ae5513cf5acac343febdb315acfcb14a005118d82d10be",
        "4d71dea7b5fa16ad82f3eaca1f42a92c9cdd7eb639ceb75de49349e691a64c5c",
    ),
    "test": RAW["test"],
}
"""The same of its prepared dataset."""


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> plan.Plan:
    """The plan of a run on the sample, whose raw and prepared dataset are committed."""
    root = Root(str(tmp_path_factory.mktemp("golden")))
    made = make_plan.make_plan(storage=root, recipe=recipes.load("mnist-sample-resnet18"), workers=0)
    preprocess.fn(ingested(made), made.recipe.split, InProcessRunner())
    return made


def test_parts_of_the_sample_keep_their_bytes(sample: plan.Plan) -> None:
    assert (digests(sample.preprocess.raw), digests(sample.preprocess.target)) == (RAW, PREPARED)


def digests(uri: DatasetURI) -> dict[str | None, tuple[str, ...]]:
    """SHA-256 of the parts of each split, in order."""
    made = manifest.verify(uri)
    splits = {file.split for file in made.files if file.split}
    return {split: tuple(file.sha256 for file in made.split(split)) for split in splits}
