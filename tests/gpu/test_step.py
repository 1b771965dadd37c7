"""A step on a GPU gives the numbers of the CPU, in every variant, and the host never waits."""

import contextlib
import operator
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from storage.statistics import ModelSpec
from storage.uri import URI
from tasks.learning import hardware, recipes, training_state
from tasks.learning.checkpoint import TRAINING, WEIGHTS
from tasks.learning.loaders import ResidentLoader
from tasks.learning.loop import Batch, Trainer, seed_everything
from tasks.learning.modeling import Classifier, autocast, move_model, resolve_precision, set_arithmetic
from tests.learning import training

CPU = torch.device("cpu")
TOLERANCES = {"fp32": (1e-3, 0.05), "bf16": (0.05, 0.5)}
"""Largest distances of logits and of gradients from fp32 on the CPU; wrong layouts, rows or labels give 1 and more.

Rounding opens or closes some ReLUs near 0, so gradients are further apart: 0.3 in bf16 for ResNet-18, also on CPUs."""
MODELS = sorted({recipes.load(name).model for name in recipes.known() if name.startswith("cifar10")})
SETTINGS: dict[str, dict[str, Any]] = {
    "small": {"model": "small", "batch_size": 16},
    "vit-tiny": {"model": "vit-tiny", "batch_size": 16, "micro_batches": 2},
    "sgd": {"model": "small", "batch_size": 16, "optimizer": "sgd", "flip": "horizontal"},
    "frozen": {"model": "vit-tiny", "batch_size": 16, "start": "pretrained", "freeze_epochs": 1},
    "mixed": {"model": "small", "batch_size": 16, "class_weights": "balanced", "mixup": 0.2, "erasing": 0.5},
}
CLASSES = tuple("0123456789")
SHAPE = (32, 32, 3)


def rows(count: int, *, seed: int = 0) -> Batch:
    """Noisy images of CIFAR's shape whose brightness tells their class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % len(CLASSES)
    noise = torch.randint(0, 60, (count, *SHAPE), generator=generator)
    return (noise + 19 * labels[:, None, None, None]).to(torch.uint8), labels


def classifier(name: str) -> Classifier:
    """The model `name`, none of whose weights is zero: some models begin with a head that answers 0 to everything."""
    seed_everything(0)
    model = Classifier(ModelSpec(model=name, image_shape=SHAPE, classes=CLASSES, mean=(115.0,) * 3, std=(60.0,) * 3))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape), alpha=0.01)
    return model


def new_trainer(device: torch.device, *, num_rows: int, **changes: Any) -> Trainer:
    """A training on `device` that is about to begin, with every kind of augmentation, as a job would set it up.

    `changes` are of the recipe `cifar10-resnet18`, which computes in fp32 here.
    """
    usual: dict[str, Any] = {"precision": "fp32", "epochs": 2, "device": device.type}
    recipe = recipes.override(recipes.load("cifar10-resnet18"), usual | changes)
    set_arithmetic(recipe.finetuning.precision, device)
    model = classifier(recipe.model)
    loader = ResidentLoader(rows(num_rows), rows(num_rows // 2, seed=1), seed=0, rank=0, device=device)
    seed_everything(recipe.finetuning.seed)
    precision = recipe.finetuning.precision
    return Trainer(recipe, model, loader, precision=precision, device=device, class_counts=range(1, 11))


def distance(computed: Tensor, expected: Tensor) -> float:
    """How far `computed` is from `expected`, relative to the latter's length."""
    reference = expected.detach().double().cpu()
    return float((computed.detach().double().cpu() - reference).norm() / reference.norm().clamp_min(1e-30))


@contextlib.contextmanager
def never_waiting() -> Iterator[list[str]]:
    """Make it an error inside the block when the host waits for a GPU, except to read the loss; yield what was read."""
    reads, read = list[str](), Trainer.read

    def announced(self: Trainer, totals: Tensor, *local: Tensor, what: str) -> list[float]:
        reads.append(what)
        with _waiting("default"):
            return read(self, totals, *local, what=what)

    with pytest.MonkeyPatch.context() as patch, _waiting("error"):
        patch.setattr(Trainer, "read", announced)
        yield reads


@contextlib.contextmanager
def _waiting(mode: str) -> Iterator[None]:
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode(mode)
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


def gradients(model: str, device: torch.device, *, precision: str) -> tuple[Tensor, Tensor]:
    """Logits and gradients of all weights for one batch."""
    set_arithmetic(precision, device)
    moved = move_model(classifier(model), precision=precision, device=device).train()
    images, labels = (tensor.to(device) for tensor in rows(20))
    with autocast(precision, device):
        logits = moved(images)
    cross_entropy(logits.float(), labels).backward()  # type: ignore[no-untyped-call]
    gradients = [weight.grad.contiguous().flatten() for weight in moved.parameters() if weight.grad is not None]
    return logits.float(), torch.cat(gradients)


@pytest.mark.parametrize("model", ["small", "vit-tiny", *MODELS])
def test_logits_and_gradients_are_those_of_the_cpu(device: torch.device, model: str) -> None:
    if device == CPU and model in MODELS:
        pytest.skip("takes long, and compares the CPU with itself")
    expected = gradients(model, CPU, precision="fp32")
    for precision in sorted({"fp32", resolve_precision("auto", device, classifier(model))}):
        computed = gradients(model, device, precision=precision)
        distances = tuple(distance(*pair) for pair in zip(computed, expected, strict=True))
        assert all(map(operator.lt, distances, TOLERANCES[precision])), (precision, distances)


def test_fp32_is_fp32(gpu: torch.device) -> None:
    set_arithmetic("fp32", gpu)
    left, right = (torch.randn(512, 512, generator=torch.Generator().manual_seed(seed)) for seed in (0, 1))
    assert distance(left.to(gpu) @ right.to(gpu), left.double() @ right.double()) < 1e-5, "TF32 gives 3e-4"
    assert "no TF32" in hardware.here(gpu, precision="fp32")


@pytest.mark.parametrize("model", ["small", *MODELS])
def test_two_trainings_in_fp32_are_bit_identical(device: torch.device, model: str) -> None:
    if device == CPU and model in MODELS:
        pytest.skip("takes long on a CPU")
    first, second = (new_trainer(device, num_rows=640, model=model, batch_size=64) for _ in range(2))
    assert torch.equal(_curve(first), _curve(second))
    expected = _weights(first)
    assert all(torch.equal(weight, expected[name]) for name, weight in _weights(second).items())


@pytest.mark.parametrize("name", SETTINGS)
def test_training_in_fp32_learns_as_on_the_cpu(device: torch.device, name: str) -> None:
    expected, curve = (_curve(new_trainer(where, num_rows=160, **SETTINGS[name])) for where in (CPU, device))
    torch.testing.assert_close(curve, expected, rtol=0.02, atol=0.005)
    assert curve[-1] < curve[0], "it learns"


@pytest.mark.parametrize("name", SETTINGS)
def test_graph_trains_as_single_kernels_do(gpu: torch.device, name: str) -> None:
    settings = SETTINGS[name] | {"micro_batches": 1}
    expected, curve = (_curve(new_trainer(gpu, num_rows=160, **settings, step=step)) for step in ("eager", "graph"))
    torch.testing.assert_close(curve, expected, rtol=0.02, atol=0.005)


@pytest.mark.skipif(not Path(sysconfig.get_path("include"), "Python.h").exists(), reason="needs Python's headers")
@pytest.mark.parametrize(("name", "launch"), [("vit-tiny", "compiled"), ("small", "compiled graph")])
def test_compiled_step_trains_as_the_model_itself(gpu: torch.device, name: str, launch: str) -> None:
    compiled, plain = (new_trainer(gpu, num_rows=160, compile=how, **SETTINGS[name]) for how in ("on", "off"))
    torch.testing.assert_close(_curve(compiled), _curve(plain), rtol=0.02, atol=0.005)
    assert compiled.step.launch == launch


def test_epoch_says_what_the_gpu_did(gpu: torch.device) -> None:
    precision = resolve_precision("auto", gpu, classifier("small"))
    epoch = new_trainer(gpu, num_rows=160, **SETTINGS["small"], precision=precision).run_epoch(1)
    assert epoch.launch == "graph" and epoch.gpu_memory > 2**20
    assert 0 <= epoch.gpu_busy <= 1 and 0 <= epoch.mfu < 1


def test_model_that_waits_for_the_gpu_is_refused_a_graph(gpu: torch.device) -> None:
    trainer = new_trainer(gpu, num_rows=160, **SETTINGS["small"], step="graph")
    trainer.model.register_forward_pre_hook(lambda model, inputs: str(inputs[0].sum().item()) and None)
    with pytest.raises(
        ValueError, match=r"^step must be auto or eager for model small, which cannot be captured \(\w*Error: "
    ):
        trainer.run_epoch(1)

    trainer = new_trainer(gpu, num_rows=160, **SETTINGS["small"])
    trainer.model.register_forward_pre_hook(lambda model, inputs: str(inputs[0].sum().item()) and None)
    assert trainer.run_epoch(1).launch == "eager", "of auto"
    assert torch.cuda.current_stream() == torch.cuda.default_stream()


def _curve(trainer: Trainer) -> Tensor:
    """Validation loss after each epoch."""
    return torch.tensor(
        [trainer.run_epoch(epoch).validation_loss for epoch in range(1, trainer.recipe.finetuning.epochs + 1)]
    )


@pytest.mark.parametrize("step", ["eager", "graph"])
@pytest.mark.parametrize("model", MODELS)
def test_models_of_the_cifar_recipes_never_wait_for_a_gpu(gpu: torch.device, model: str, step: str) -> None:
    precision = resolve_precision("auto", gpu, classifier("small"))
    changes = {"model": model, "batch_size": 32, "precision": precision, "step": step}
    trainer = new_trainer(gpu, num_rows=320, **changes)
    trainer.run_epoch(1)  # libraries may wait while they choose algorithms, and so does a capture
    with never_waiting() as reads:
        trainer.run_epoch(2)
    assert len(reads) == 10 + 1, "ten times in training, and once for the validation loss"


def test_checkpoint_holds_the_state_at_the_end_of_its_epoch_while_the_next_one_trains(
    device: torch.device, tmp_path: Path
) -> None:
    step = "graph" if device.type == "cuda" else "eager"
    trainer = new_trainer(device, num_rows=160, **SETTINGS["small"], epochs=3, step=step)
    history = [trainer.run_epoch(1)]
    for epoch in (1, 2):
        expected = _weights(trainer)
        folder = tmp_path / f"{epoch}"
        with never_waiting() if device.type == "cuda" else contextlib.nullcontext():
            write = training_state.take(trainer, history, prepared="", fields=training.FIELDS)
        history.append(trainer.run_epoch(epoch + 1))
        write(URI(str(folder)))
        weights = safetensors.torch.load_file(folder / WEIGHTS)
        assert weights.keys() == expected.keys() and all(torch.equal(weights[name], expected[name]) for name in weights)
        assert any(not torch.equal(weights[name], weight) for name, weight in _weights(trainer).items())
        numbers = [
            int(tensor) for tensor in safetensors.torch.load_file(folder / TRAINING).values() if tensor.dim() == 0
        ]
        assert set(numbers) == {epoch * trainer.steps_per_epoch}, "of the steps"


def _weights(trainer: Trainer) -> dict[str, Tensor]:
    """A copy on the CPU of everything that the model has learned."""
    return {name: weight.detach().cpu().clone() for name, weight in trainer.model.state_dict().items()}


@pytest.mark.parametrize("is_back", [False, True], ids=["there", "back"])
@pytest.mark.parametrize("name", ["small", "sgd"])
def test_training_that_goes_on_on_another_device_learns_as_one_that_stays(
    device: torch.device, tmp_path: Path, name: str, is_back: bool
) -> None:
    stays, goes_on = (new_trainer(CPU, num_rows=160, **SETTINGS[name]) for _ in range(2))
    begun = new_trainer(device, num_rows=160, **SETTINGS[name])
    begun.model.backbone.to(memory_format=torch.channels_last)  # as on a GPU, also where a CPU stands in for it
    if not is_back:
        begun, goes_on = goes_on, begun
    training.save(begun, [begun.run_epoch(1)], tmp_path)
    training.resume(goes_on, tmp_path)
    for trainer, epochs in ((stays, (1, 2)), (goes_on, (2,))):
        for epoch in epochs:
            trainer.run_epoch(epoch)
    expected = stays.model.state_dict()
    distances = {key: distance(weight, expected[key]) for key, weight in goes_on.model.state_dict().items()}
    assert max(distances.values()) < 1e-3, distances
