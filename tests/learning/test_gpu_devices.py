"""A GPU's step without a GPU: nothing waits for the device, and depthwise convolutions are fast on a CPU."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from storage.statistics import ModelSpec
from tasks.learning.loaders import ResidentLoader
from tasks.learning.loop import Trainer
from tasks.learning.modeling import Classifier, move_model, resolve_precision
from tests.learning import training
from tests.learning.training import CPU

pytestmark = pytest.mark.usefixtures("one_thread", "more_models")

META = torch.device("meta")
CLASSES = tuple("0123456789")


class Crossings(TorchDispatchMode):
    """Records every operation that makes the host wait for a device: reads of a scalar, and copies between devices."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[str] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result, name = function(*args, **(kwargs or {})), str(function)
        devices = {tensor.device.type for tensor in (*args, result) if isinstance(tensor, torch.Tensor)}
        if ("_local_scalar_dense" in name and devices != {"cpu"}) or ("copy" in name and len(devices) > 1):
            self.operations.append(name)
        return result


def on_meta(*, steps: int, **changes: Any) -> Trainer:
    """A run on no device; its optimizer is not fused, which torch refuses there."""
    recipe = training.recipe(batch_size=4, flip="horizontal", **changes)
    rows = torch.zeros(4 * steps, 28, 28, 1, dtype=torch.uint8), torch.zeros(4 * steps, dtype=torch.int64)
    spec = ModelSpec(model=recipe.model, image_shape=(28, 28, 1), classes=CLASSES, mean=(33.3,), std=(78.6,))
    loader = ResidentLoader(rows, rows, seed=0, rank=0, device=META)
    trainer = Trainer(recipe, Classifier(spec), loader, precision="fp32", device=META)
    for group in trainer.optimizer.param_groups:
        group["fused"] = False
    return trainer


@pytest.mark.parametrize(("model", "steps"), [("small", 43), pytest.param("vit-patch4", 10, marks=pytest.mark.slow)])
def test_host_waits_for_the_device_at_most_ten_times_an_epoch(
    monkeypatch: pytest.MonkeyPatch, model: str, steps: int
) -> None:
    trainer, reads = on_meta(steps=steps, model=model), list[str]()

    def read(self: Trainer, totals: torch.Tensor, *local: torch.Tensor, what: str) -> list[float]:
        reads.append(what)
        return [1.0] * (len(totals) + len(local))

    monkeypatch.setattr(Trainer, "read", read)
    with Crossings() as crossings:
        trainer.run_epoch(1)
    # an epoch's order, and the random numbers of its augmentation
    assert crossings.operations == ["aten._to_copy.default"] * 2
    every = -(-steps // 10)
    assert len(reads) == -(-steps // every) + 1 <= 10 + 1, "ten reads in training, and one of the validation loss"


def test_depthwise_convolutions_are_computed_in_fp32_and_channels_last_on_a_cpu() -> None:
    depthwise = torch.nn.Conv2d(4, 4, 1, groups=4)
    assert [resolve_precision(precision, CPU, depthwise) for precision in ("auto", "bf16")] == ["fp32", "bf16"]

    def is_channels_last(model: str, precision: str) -> bool:
        spec = ModelSpec(model=model, image_shape=(32, 32, 3), classes=CLASSES, mean=(0.0,) * 3, std=(1.0,) * 3)
        moved = move_model(Classifier(spec), precision=precision, device=CPU)
        weights = [weight for weight in moved.backbone.parameters() if weight.dim() == 4 and min(weight.shape) > 1]
        return all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)

    assert [is_channels_last("resnet18", precision) for precision in ("fp32", "bf16")] == [False, True]
    assert is_channels_last("timm/mobilenetv3_small_050", "fp32")
