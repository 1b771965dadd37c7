"""A GPU's step without a GPU: nothing waits for the device, and the precision is one that it has."""

import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tasks.learning import hardware
from tasks.learning.loaders import ResidentLoader
from tasks.learning.loop import Trainer
from tasks.learning.modeling import Classifier, ModelSpec, move_model, resolve_precision, set_arithmetic
from tests.learning import training
from tests.learning.training import CPU

pytestmark = pytest.mark.usefixtures("one_thread", "small_model")

META, CUDA = torch.device("meta"), torch.device("cuda", 0)
CLASSES = tuple("0123456789")


class Crossings(TorchDispatchMode):
    """Records every operation that makes the host wait for a device: reads of a scalar, and copies between devices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **(kwargs or {}))
        name = str(function)
        on = {one.device.type for one in (*args, made) if isinstance(one, torch.Tensor)}
        if "_local_scalar_dense" in name or ("copy" in name and len(on) > 1):
            self.found.append(name)
        return made


@pytest.fixture
def fused_on_meta(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let fused optimizers run on `meta`, for which their operations are registered."""
    for name in ("adam", "sgd"):
        monkeypatch.setattr(sys.modules[f"torch.optim.{name}"], "_device_dtype_check_for_fused", lambda weight: None)


@pytest.fixture
def flags() -> Iterator[None]:
    """Put the process's settings for arithmetic on GPUs back afterwards."""
    matmul, cudnn = torch.get_float32_matmul_precision(), torch.backends.cudnn
    before = (cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic)
    yield
    torch.set_float32_matmul_precision(matmul)
    cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before


def on_meta(*, steps: int, **changes: Any) -> Trainer:
    recipe = training.recipe(batch_size=4, flip="horizontal", **changes)
    rows = torch.zeros(4 * steps, 28, 28, 1, dtype=torch.uint8), torch.zeros(4 * steps, dtype=torch.int64)
    spec = ModelSpec(model=recipe.model, image_shape=(28, 28, 1), classes=CLASSES, mean=(33.3,), std=(78.6,))
    loader = ResidentLoader(rows, rows, seed=0, rank=0, device=META)
    return Trainer(recipe, Classifier(spec), loader, precision="fp32", device=META)


@pytest.mark.usefixtures("fused_on_meta")
class TestWaiting:
    @pytest.mark.parametrize(("model", "steps"), [("small", 43), ("vit-patch4", 10)])
    def test_host_waits_for_the_device_at_most_ten_times_an_epoch(
        self, monkeypatch: pytest.MonkeyPatch, model: str, steps: int
    ) -> None:
        trainer, reads = on_meta(steps=steps, model=model), list[str]()

        def read(self: Trainer, totals: torch.Tensor, *local: torch.Tensor, what: str) -> list[float]:
            reads.append(what)
            return [1.0] * (len(totals) + len(local))

        monkeypatch.setattr(Trainer, "_read", read)
        with Crossings() as seen:
            trainer.run_epoch(1)
        # an epoch's order, and the random numbers of its augmentation
        assert seen.found == ["aten._to_copy.default"] * 2
        every = -(-steps // 10)
        assert len(reads) == -(-steps // every) + 1 <= 10 + 1, "ten reads in training, and one of the validation loss"


class TestPrecision:
    MODEL = torch.nn.Conv2d(3, 3, 1)

    @pytest.fixture(autouse=True)
    def _turing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A T4: torch emulates bf16 on it."""
        about = SimpleNamespace(major=7, minor=5, name="Tesla T4")
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *device: about)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda *device: about.name)
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *device: (about.major, about.minor))

    def test_only_a_gpu_with_bf16_trains_in_it(self, monkeypatch: pytest.MonkeyPatch) -> None:
        assert resolve_precision("auto", CUDA, self.MODEL) == "fp32"
        with pytest.raises(ValueError, match="must be fp32 or auto on Tesla T4, which has no bf16, got 'bf16'"):
            resolve_precision("bf16", CUDA, self.MODEL)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *device: SimpleNamespace(major=9, minor=0))
        assert resolve_precision("auto", CUDA, self.MODEL) == "bf16"

    @pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
    def test_weights_are_channels_last_in_bf16_and_for_depthwise_convolutions_on_a_cpu(
        self, monkeypatch: pytest.MonkeyPatch, device: torch.device
    ) -> None:
        monkeypatch.setattr(Classifier, "to", lambda model, device: model)

        def is_last(model: str, precision: str) -> bool:
            spec = ModelSpec(model=model, image_shape=(32, 32, 3), classes=CLASSES, mean=(0.0,) * 3, std=(1.0,) * 3)
            placed = move_model(Classifier(spec), precision=precision, device=device)
            weights = [weight for weight in placed.backbone.parameters() if weight.dim() == 4 and min(weight.shape) > 1]
            assert weights and len({weight.is_contiguous(memory_format=torch.channels_last) for weight in weights}) == 1
            return weights[0].is_contiguous(memory_format=torch.channels_last)

        assert [is_last("resnet18", "fp32"), is_last("resnet18", "bf16")] == [False, True]
        assert is_last("timm/mobilenetv3_small_050", "fp32") == (device == CPU)

    def test_depthwise_convolutions_are_computed_in_fp32_on_a_cpu(self) -> None:
        depthwise = torch.nn.Conv2d(4, 4, 1, groups=4)
        assert [resolve_precision(asked, CPU, depthwise) for asked in ("auto", "bf16")] == ["fp32", "bf16"]

    @pytest.mark.usefixtures("flags")
    @pytest.mark.parametrize(
        ("precision", "settings"), [("fp32", "sm_75, no TF32"), ("bf16", "sm_75, TF32, cudnn.benchmark")]
    )
    def test_tf32_and_timed_algorithms_are_used_in_bf16_alone_and_recorded(self, precision: str, settings: str) -> None:
        set_arithmetic(precision, CUDA)
        assert f"Tesla T4, {settings}, cuDNN 91002" in hardware.here(CUDA, precision=precision)
        assert torch.backends.cudnn.deterministic == (precision == "fp32")
