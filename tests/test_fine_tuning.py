"""Where a model starts: real ImageNet weights from a package or a file, and other models' champions."""

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import safetensors.torch
import torch

from flows.__main__ import main
from flows.cli import preflight
from flows.cli.commands import RunOptions
from storage import manifest, registry
from storage.decision import Decision
from storage.kinds import CheckpointURI
from tasks.download import download
from tasks.embed import embed
from tasks.learning import pretrained, recipes, training_state
from tasks.planning import make_plan, model_check
from tasks.planning.plan import Plan
from tasks.preprocess import preprocess
from tasks.runners.runner import InProcessRunner
from tasks.train import train
from tests.image_folder import write_folder
from tests.ingested import ingested
from tests.learning.training import LITE0, write_lite0
from tests.runs import options_of

SMALL = {"epochs": 1, "image_size": 32, "batch_size": 4, "max_shift": 2, "max_quarantined": 0.5, "precision": "fp32"}
"""A training of seconds."""


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`lite0.safetensors`: the ImageNet weights."""
    return write_lite0(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_folder(tmp_path_factory.mktemp("pictures") / "fruit", train=6, test=3)


Make = Callable[..., Plan]


@pytest.fixture
def make(tmp_path: Path, pictures: Path) -> Make:
    """Plans a run on the pictures with settings of `images-finetune`, or another recipe's."""

    def make(recipe: str = "images-finetune", *, data: Path = pictures, **settings: Any) -> Plan:
        return make_plan.make_plan(
            storage=str(tmp_path / "root"),
            recipe=recipes.override(recipes.load(recipe), SMALL | settings),
            data=str(data),
            workers=0,
        )

    return make


def test_bytes_of_a_file_name_the_model_and_its_path_does_not(make: Make, weights: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copy(weights, tmp_path / "copy.safetensors"))
    original, moved = (make(model=LITE0, start=str(path)) for path in (weights, copy))
    assert original.train.weights and original.train.weights == moved.train.weights
    assert original.train.target == moved.train.target
    safetensors.torch.save_file(
        {name: 2 * tensor.contiguous() for name, tensor in pretrained.read_published(LITE0).items()}, copy
    )
    other = make(model=LITE0, start=str(copy))
    assert other.train.weights != original.train.weights and other.train.target != original.train.target
    assert other.train.weights in other.uses and other.train.prepared == original.train.prepared


def test_training_starts_from_the_file_and_needs_it_no_more_afterwards(
    make: Make, weights: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copy(weights, tmp_path))
    settings: dict[str, Any] = {"model": LITE0, "start": str(copy), "learning_rate": 1e-12}
    plan = make(**settings)
    model, meta = training_state.load_model(trained(plan))
    stem = "conv_stem.weight"
    assert torch.allclose(model.backbone.state_dict()[stem], pretrained.read_published(LITE0)[stem])
    assert model.backbone.state_dict()["classifier.weight"].shape[0] == len(meta.model.classes) == 3
    assert manifest.load(plan.train.target).parent("weights", of=plan.train.target) == plan.train.weights
    assert plan.train.weights and meta.model.mean == (127.5,) * 3
    assert main(["lineage", plan.train.target]) == 0
    assert hashlib.sha256(weights.read_bytes()).hexdigest() in capsys.readouterr().out
    shutil.rmtree(plan.train.weights)
    assert make(**settings).weights is None, "a model that is there is not made again"


def test_default_starts_from_the_weights_of_a_package_which_are_stored_once(make: Make, pictures: Path) -> None:
    plan = make()
    assert plan.recipe.training.start == recipes.Pretrained() and plan.recipe.model == LITE0
    assert (
        plan.download is None and plan.weights and plan.train.weights and plan.train.weights.parent.name == "downloads"
    )
    download.fn(plan.weights)
    (file,) = manifest.verify(plan.train.weights).files
    assert file.path == f"tf_efficientnet_lite0-{file.sha256[:12]}.safetensors"
    stored = safetensors.torch.load_file(Path(plan.train.weights, file.path))
    assert all(torch.equal(stored[name], tensor) for name, tensor in pretrained.read_published(LITE0).items())
    assert make().train.weights == plan.train.weights


def trained(plan: Plan) -> CheckpointURI:
    """The model of `plan`, made as the flow does."""
    runner = InProcessRunner()
    prepared = preprocess.fn(ingested(plan, runner), plan.recipe.split, runner)
    start, embeddings = plan.train.start, None
    if plan.embed:
        embeddings = embed.fn(plan.embed, runner)
    return train.fn(prepared, plan.recipe, runner, start=start, embeddings=embeddings, workers=0)


def crowned(plan: Plan) -> CheckpointURI:
    """The model of `plan`, which becomes champion."""
    champion = trained(plan)
    same: dict[str, Any] = {"champion": champion, "challenger": champion, "evaluation": "", "promoted": True}
    registry.append(plan.root, plan.registered_model, Decision(number=1, **same, reason="", gate={}, metrics={}))
    return champion


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("model=timm/resnet18", r"^start=pretrained: the weights of timm/resnet18 cannot be downloaded: "),
        ("model=resnet18", "^start=pretrained: nobody publishes weights of model resnet18; use one of"),
        ("model=resnet18 start=FOLDER/lite0.safetensors", "^start: .*the weights do not fit model resnet18: "),
        ("start=FOLDER/none.safetensors", "^start: .*there is no file .*/none.safetensors"),
        ("start=champion:none", "^--set start=champion:none: .* has no champion of 'none' yet"),
    ],
)
def test_start_that_cannot_be_is_refused_by_the_command_line(
    pictures: Path, weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: str, message: str
) -> None:
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    words = [f"--set={setting}" for setting in settings.replace("FOLDER", str(weights.parent)).split()]
    usual = [f"--set={name}={value}" for name, value in SMALL.items()]
    options = ["--data", str(pictures), "--storage", str(tmp_path / "root"), "--workers", "0", *usual, *words]
    with pytest.raises(ValueError, match=message):
        preflight.checked(options_of(RunOptions, *options))


def test_published_model_with_several_heads_is_refused_before_anything_starts(make: Make) -> None:
    plan = make(model="timm/deit_tiny_distilled_patch16_224")
    with pytest.raises(ValueError, match="cannot be used: model .* has several heads, head, head_dist; choose one"):
        model_check.check_model(plan)


def test_champion_of_another_registered_model_gives_its_backbone_to_other_classes(
    make: Make, pictures: Path, tmp_path: Path
) -> None:
    other = make("images-resnet18", model="small-cnn")
    champion = crowned(other)
    renamed = Path(shutil.copytree(pictures, tmp_path / "vegetables"))
    for split in ("train", "test"):
        (renamed / split / "pears").rename(renamed / split / "leeks")
    settings: dict[str, Any] = {"model": "small-cnn", "start": f"champion:{other.registered_model}", "channels": 1}
    settings |= {"learning_rate": 1e-12}
    plan = make("images-resnet18", data=renamed, **settings)
    assert plan.train.initial == champion and plan.registered_model != other.registered_model
    model_check.check_training(plan)
    before, model = (training_state.load_model(uri)[0].backbone.state_dict() for uri in (champion, trained(plan)))
    assert torch.allclose(model["features.2.weight"], before["features.2.weight"])
    assert torch.allclose(model["features.0.weight"], before["features.0.weight"].sum(1, keepdim=True), atol=1e-6)
    assert not torch.allclose(model["head.0.weight"], before["head.0.weight"], atol=1e-3)
    assert manifest.load(plan.train.target).parent("initial", of=plan.train.target) == champion
    with pytest.raises(ValueError, match="model of the champion .* is 'small-cnn', but 'resnet18' is requested"):
        make("images-resnet18", start=f"champion:{other.registered_model}")
