"""The training loop: plain PyTorch; ranks communicate only through `torch.distributed`."""

import functools
import gc
import math
import random
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.functional import cross_entropy

from storage.statistics import EpochMetrics
from tasks.learning import hardware
from tasks.learning.augmentation import RandomTransforms, drawn, flipped, shifted
from tasks.learning.epoch_metrics import NonFiniteLoss, choose_class_weights, local_batch_size
from tasks.learning.modeling import (
    Classifier,
    autocast,
    count_flops,
    fit_temperature,
    move_model,
    norms_of_backbone,
    weights_of_backbone,
)
from tasks.learning.optimizer import make_optimizer
from tasks.learning.recipes import Recipe
from tasks.learning.step import Step

_DRAWS, _TRANSFORMS = 2, 3
"""Parts of seeds: of random numbers inside a model (dropout, stochastic depth), and of torchvision's transforms."""
_VALIDATION_BATCH_SIZE, _VALIDATION_BYTES = 512, 2**27
"""Validation rows and bytes of pixels of a batch on the CPU, unless the recipe says another number of rows."""
_CALIBRATION_LOGITS = 2**24
"""Most logits of a rank's validation rows from which the temperature is fitted; rows are stored in random order."""
Batch = tuple[Tensor, Tensor]
"""Images (uint8, BHWC) and labels (int64, (B,))."""


class Loader(Protocol):
    """Source of batches for one rank; rows and their order depend only on (seed, epoch)."""

    def num_train_rows(self) -> int:
        """Return the number of training rows of this rank in every epoch."""

    def train_batches(self, *, epoch: int, batch_size: int, steps: int | None = None) -> Iterator[Batch]:
        """Yield `steps` shuffled batches (none: as many as possible) of exactly `batch_size` rows.

        The remaining rows are left out; they differ from epoch to epoch.
        """

    def validation_batches(self, *, batch_size: int) -> Iterator[Batch]:
        """Yield this rank's validation rows in batches; over all ranks, each row comes exactly once."""


class Trainer:
    """Model, optimizer and schedule of one rank; `run_epoch` is deterministic in (recipe, rank, world size, epoch).

    `class_counts` are the training rows of each class, over all ranks; only `class_weights` needs them.
    """

    def __init__(
        self,
        recipe: Recipe,
        model: Classifier,
        loader: Loader,
        *,
        precision: str,
        device: torch.device,
        class_counts: Sequence[int] = (),
        say: Callable[[str], None] = print,
    ) -> None:
        self.recipe, self.loader, self.precision, self.device = recipe, loader, precision, device
        self.rank, self.world_size = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        self.model = move_model(model, precision=precision, device=device)
        weights = choose_class_weights(recipe.finetuning.class_weights, class_counts)
        self.class_weights = torch.tensor(weights, device=device) if weights else None
        self.transforms = RandomTransforms.of(recipe.finetuning.augment, num_classes=len(model.spec.classes))
        has_backbone = recipe.finetuning.freeze_epochs > 0 or recipe.finetuning.backbone_lr_scale != 1
        backbone = weights_of_backbone(model.backbone) if has_backbone else []
        self._unfrozen = [weight for weight in backbone if weight.requires_grad]  # the model itself may freeze others
        self._is_frozen = False
        self._new_step = functools.partial(
            Step,
            recipe,
            self.model,
            precision=precision,
            device=device,
            world_size=self.world_size,
            class_weights=self.class_weights,
            say=say,
        )
        self._compiles = False
        self.step = self._new_step()
        self.local_batch_size = local_batch_size(
            recipe.finetuning.batch_size, rank=self.rank, world_size=self.world_size
        )
        num_rows = loader.num_train_rows()
        (steps,) = self._reduced("MIN", num_rows // self.local_batch_size if self.local_batch_size else 0)
        self.steps_per_epoch = int(steps)
        self.optimizer, self.scheduler = make_optimizer(
            recipe.finetuning.optimizer,
            self.model,
            total_steps=self.steps_per_epoch * recipe.finetuning.epochs,
            warmup_steps=self.steps_per_epoch,
            decay_from=self.steps_per_epoch * recipe.finetuning.constant_epochs,
            backbone=backbone,
            backbone_scale=recipe.finetuning.backbone_lr_scale,
        )
        # What fits a GPU's memory with gradients fits it without, unless a graph keeps the step's memory. On the CPU
        # the size decides the last digits of sums.
        piece = math.ceil(self.local_batch_size / recipe.finetuning.micro_batches)
        fitting = max(1, _VALIDATION_BYTES // math.prod(model.spec.image_shape))
        usual = piece if device.type == "cuda" else min(_VALIDATION_BATCH_SIZE, fitting)
        self.validation_batch_size = recipe.finetuning.validation_batch_size or usual
        self._flops = count_flops(model) if (device.type, precision) == ("cuda", "bf16") else 0
        self._busy = list[float]()  # in this epoch so far, as is the next
        self._data_wait_s = 0.0
        self._ended_at: float | None = None  # end of the previous epoch, by `time.perf_counter`

    def run_epoch(
        self,
        epoch: int,
        *,
        on_step: Callable[[int, int, float], None] = lambda step, steps, loss: None,
        on_batch: Callable[[], None] = lambda: None,
    ) -> EpochMetrics:
        """Train epoch `epoch` (from 1) and validate; all metrics are over all ranks.

        `on_step(step, steps, loss)` is called several times with the latest local loss, `on_batch()` after every
        batch. Raises `NonFiniteLoss`.
        """
        began_at = time.perf_counter()
        checkpoint_wait_s = 0.0 if self._ended_at is None else began_at - self._ended_at
        self._data_wait_s = 0.0
        if self._is_frozen != (epoch <= self.recipe.finetuning.freeze_epochs):
            self._toggle_backbone()
        train_loss, train_right, train_rows = self._train(epoch, on_step, on_batch)
        train_s = time.perf_counter() - began_at
        if self.world_size > 1:
            for buffer in self.model.buffers():  # the checkpoint stores the running statistics of rank 0
                dist.broadcast(buffer, src=0)
        loss, right, weight, rows, temperature = self._validate(on_batch)
        self._ended_at = time.perf_counter()
        seconds = checkpoint_wait_s + self._ended_at - began_at
        seconds, train_s, data_wait_s, checkpoint_wait_s = self._reduced(
            "MAX", seconds, train_s, self._data_wait_s, checkpoint_wait_s
        )
        rates, has_groups = self.scheduler.get_last_lr(), self.recipe.finetuning.backbone_lr_scale != 1
        return EpochMetrics(
            epoch=epoch,
            step=epoch * self.steps_per_epoch,
            train_loss=train_loss / train_rows,
            train_accuracy=train_right / train_rows,
            validation_loss=loss / weight,
            validation_accuracy=right / rows,
            learning_rate=float(rates[0]),
            backbone_learning_rate=0.0 if self._is_frozen else float(rates[has_groups]),
            temperature=round(temperature, 6),
            seconds=seconds,
            train_s=train_s,
            data_wait_s=data_wait_s,
            checkpoint_wait_s=checkpoint_wait_s,
            launch=self.step.launch,
            **self._gpu_use(train_s),
        )

    def _gpu_use(self, train_s: float) -> dict[str, Any]:
        if self.device.type != "cuda":
            return {}
        # A backward pass of all layers computes twice as much as the forward pass.
        flops = 0 if self._is_frozen else 3 * self._flops * self.steps_per_epoch * self.local_batch_size
        return {
            "gpu_busy": statistics.fmean(self._busy),
            "gpu_memory": torch.cuda.max_memory_allocated(self.device),
            "mfu": hardware.mfu(torch.cuda.get_device_name(self.device), flops=flops, seconds=train_s),
        }

    def _toggle_backbone(self) -> None:
        """Freeze or unfreeze the backbone, with a new step: DDP and a graph know the gradients that there are."""
        self._is_frozen = not self._is_frozen
        for weight in self._unfrozen:
            weight.requires_grad_(not self._is_frozen)
        self._renew_step()

    def compile_step(self) -> None:
        """Compile the steps from now on; one that cannot be compiled stays as it is."""
        if not self._compiles:
            self._compiles = True
            self._renew_step()

    def _renew_step(self) -> None:
        del self.step
        gc.collect()  # the old DDP, which has hooks on the weights, is in a cycle
        self.step = self._new_step(compiles=self._compiles)

    def _train(
        self,
        epoch: int,
        on_step: Callable[[int, int, float], None],
        on_batch: Callable[[], None],
    ) -> list[float]:
        self.step.parallel.train()
        for module in norms_of_backbone(self.model.backbone) if self._is_frozen else ():
            module.eval()
        self.step.totals.zero_()
        self._busy.clear()
        steps, values = self.steps_per_epoch, list[float]()
        batches = self.loader.train_batches(epoch=epoch, batch_size=self.local_batch_size, steps=steps)
        augment, parts = self.recipe.finetuning.augment, (self.recipe.finetuning.seed, epoch)
        mirrors = augment.kind == "pixels" and augment.flip == "horizontal"  # images of files are mirrored on loading
        random_numbers = drawn(
            steps,
            self.local_batch_size,
            max_shift=augment.max_shift,
            mirrors=mirrors,
            generator=torch.Generator().manual_seed(mixed_seed(*parts, self.rank)),
            device=self.device,
        )
        every = math.ceil(steps / 10)
        for step, (images, labels), numbers in zip(
            range(1, steps + 1), self._timed(batches), random_numbers, strict=False
        ):
            images = shifted(images, numbers, max_shift=augment.max_shift)
            if mirrors:
                images = flipped(images, numbers[-1])
            if self.transforms:
                seed_everything(mixed_seed(*parts, step, self.rank, _TRANSFORMS))
                images, labels = self.transforms(images, labels)
            self.optimizer.zero_grad(set_to_none=True)
            # A restart repeats the model's random numbers exactly, and every rank draws different ones.
            seed_everything(mixed_seed(*parts, step, self.rank, _DRAWS))
            summed = self.step(images, labels)
            self.optimizer.step()
            self.scheduler.step()
            on_batch()
            if step % every == 0 or step == steps:  # at most ten times: only then the host waits for the device
                *values, loss = self.read(self.step.totals, summed, what=f"training loss in epoch {epoch}")
                if self.device.type == "cuda":
                    self._busy.append(hardware.busy_share(self.device))
                on_step(step, steps, loss / len(labels))
        return values

    @torch.inference_mode()
    def _validate(self, on_batch: Callable[[], None]) -> list[float]:
        self.model.eval()
        totals = torch.zeros(4, dtype=torch.float64, device=self.device)
        num_classes, num_kept = len(self.model.spec.classes), 0
        nothing = torch.empty(0, dtype=torch.int64, device=self.device)
        kept = [(nothing.float().view(0, num_classes), nothing)]
        for images, labels in self._timed(self.loader.validation_batches(batch_size=self.validation_batch_size)):
            with autocast(self.precision, self.device):
                logits = self.model(images)
            totals[0] += cross_entropy(logits.float(), labels, weight=self.class_weights, reduction="sum")
            totals[1] += (logits.argmax(1) == labels).sum()
            totals[2] += len(labels) if self.class_weights is None else self.class_weights[labels].sum()
            totals[3] += len(labels)
            if (num_kept + len(labels)) * num_classes <= _CALIBRATION_LOGITS:
                kept.append((logits.float(), labels))
                num_kept += len(labels)
            on_batch()
        temperature = fit_temperature(*map(torch.cat, zip(*kept, strict=True)))
        return self.read(totals, temperature, what="validation loss")

    def _timed(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield `batches` and add up the host's waiting time for them, without synchronising the device."""
        while True:
            asked_at = time.perf_counter()
            batch = next(batches, None)
            self._data_wait_s += time.perf_counter() - asked_at
            if batch is None:
                return
            yield batch

    def _reduced(self, how: Literal["MIN", "MAX"], *values: float) -> list[float]:
        """Return the minimum or maximum of each of `values` over all ranks."""
        if self.world_size == 1:
            return list(values)
        reduced = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(reduced, op=getattr(dist.ReduceOp, how))
        return [float(value) for value in reduced.tolist()]

    def read(self, totals: Tensor, *local: Tensor, what: str) -> list[float]:
        """Return `totals`, summed over all ranks, then the `local` scalars; the host waits for the device once."""
        summed = totals.clone()
        if self.world_size > 1:
            dist.all_reduce(summed)
        values: list[float] = torch.cat([summed, *(scalar.to(summed.dtype).view(1) for scalar in local)]).tolist()
        if not math.isfinite(values[0]):
            raise NonFiniteLoss(f"{what} is {values[0]}; use a lower learning_rate or precision=fp32")
        return values


def seed_everything(seed: int) -> None:
    """Seed the generators that models draw from: Python's, NumPy's, torch's, and the one of the GPU in use, if any."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    # `torch.manual_seed` seeds all devices; if CUDA exists but is not in use, that takes as long as a small step.
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)


def mixed_seed(*parts: int) -> int:
    """Mix several numbers into one 63-bit seed; different parts give unrelated streams."""
    return int(np.random.SeedSequence(parts).generate_state(1, np.uint64)[0] >> np.uint64(1))
