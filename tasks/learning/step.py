"""The step of one rank: forward and backward pass of a batch, on a GPU also as CUDA graphs."""

import contextlib
import os
from pathlib import Path
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from storage import error_policy
from tasks.learning.modeling import Classifier, autocast
from tasks.learning.recipes import Recipe


class Step:
    """Forward and backward pass of a batch; leaves its gradients in the weights, and never waits for the device."""

    def __init__(
        self,
        recipe: Recipe,
        model: Classifier,
        *,
        precision: str,
        device: torch.device,
        world_size: int,
        class_weights: Tensor | None = None,
    ) -> None:
        self.recipe, self.precision, self.device, self.world_size = recipe, precision, device, world_size
        self.model, self.class_weights = model, class_weights
        self.parallel: nn.Module = self._distributed() if world_size > 1 else model
        self.totals = torch.zeros(3, dtype=torch.float64, device=device)
        """Loss, hits and rows since the totals were last set to zero."""
        module: nn.Module = self.parallel
        if recipe.finetuning.compile:
            module = cast(nn.Module, torch.compile(module, dynamic=False))
        self.forward = _Forward(module, precision, device)
        self._must_capture = recipe.resources.step == "graph"

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Accumulate the gradients of a batch piece by piece, add to `totals`, and return the summed loss.

        Images are uint8, BHWC; labels int64, (B,), or mixed: float32, (B, classes). The sum over all rows of the global
        batch is divided by their number, not by the sum of their weights, whose mean over all training rows is 1: so
        pieces and ranks add up to the same gradients as one batch of one rank.
        """
        if self._must_capture:
            _capture(self.forward, images, name=self.recipe.model)
            self._must_capture = False
        batch_loss = torch.zeros((), device=self.device)
        pieces = list(
            zip(*(rows.chunk(self.recipe.finetuning.micro_batches) for rows in (images, labels)), strict=True)
        )
        for number, (some, targets) in enumerate(pieces, start=1):
            model, waits = self.parallel, number < len(pieces)  # ranks exchange gradients with the last piece
            with model.no_sync() if waits and isinstance(model, DistributedDataParallel) else contextlib.nullcontext():
                logits = self.forward(some)
                summed = self._loss(logits.float(), targets)
                # DDP averages over ranks: with this factor, every row of the global batch has the same weight.
                (summed * (self.world_size / self.recipe.finetuning.batch_size)).backward()
            batch_loss += summed.detach()
            self.totals[0] += summed.detach()
            classes = targets if targets.ndim == 1 else targets.argmax(1)  # of mixed labels, that of the largest share
            self.totals[1] += (logits.detach().argmax(1) == classes).sum()
            self.totals[2] += len(targets)
        return batch_loss

    def _loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Sum the losses of all rows, each times the weight of its label; of mixed labels, the mean by their shares.

        Not `cross_entropy(weight=...)`, which gives what is smoothed of a row's label the weights of other classes: the
        lowest loss would be to predict a very rare class for every row.
        """
        smoothing = self.recipe.finetuning.label_smoothing
        if self.class_weights is None:
            return cross_entropy(logits, targets, label_smoothing=smoothing, reduction="sum")
        losses = cross_entropy(logits, targets, label_smoothing=smoothing, reduction="none")
        weights = self.class_weights[targets] if targets.ndim == 1 else targets @ self.class_weights
        return (losses * weights).sum()

    def _distributed(self) -> DistributedDataParallel:
        # A resumed process adds up gradients in the same order as an uninterrupted one. With three or more ranks that
        # order depends on a gradient's place in its bucket, and DDP rebuilds its buckets after a process's first
        # backward pass, unless it looks for unused parameters, which costs one pass through the graph per step.
        is_fixed = self.device.type == "cpu" and self.precision == "fp32" and self.world_size > 2
        is_static = self.recipe.finetuning.micro_batches == 1  # every backward pass exchanges gradients
        # Else DDP waits for gradients of weights that never get one. On three and more CPUs in bf16 that would change
        # the last bits.
        finds_unused = not is_static and (self.device.type == "cuda" or self.world_size == 2)
        return DistributedDataParallel(
            self.model,
            gradient_as_bucket_view=True,
            batched_grad_copy=self.device.type == "cuda",  # spares launches; with three CPU ranks other last bits
            forward_sync_buffers=False,  # `Trainer` sends those of rank 0 to all ranks, once per epoch
            find_unused_parameters=is_fixed or finds_unused,
            static_graph=is_static and not is_fixed,
        )


class _Forward(nn.Module):
    """Forward pass of `model` at `precision`; a module of its own, since a capture replaces its `forward` for good."""

    def __init__(self, model: nn.Module, precision: str, device: torch.device) -> None:
        super().__init__()
        self.model, self.precision, self.device = model, precision, device

    def forward(self, images: Tensor) -> Tensor:
        with autocast(self.precision, self.device):
            logits: Tensor = self.model(images)
        return logits


def _capture(forward: _Forward, images: Tensor, *, name: str) -> None:
    """Let `forward` replay CUDA graphs of its forward and backward pass, for batches of the shape of `images`.

    The steps that warm up leave no trace in the model's running statistics and in its random numbers. Raises
    `ValueError` if the model `name` cannot be captured, for example because it waits for the GPU.
    """
    before = [buffer.clone() for buffer in forward.buffers()]
    try:
        with torch.random.fork_rng([images.device]):
            torch.cuda.make_graphed_callables(forward, (images,), allow_unused_input=True)
    except Exception as error:
        if error_policy.is_out_of_memory(error):
            raise
        reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        raise ValueError(f"step must be eager for model {name}, which cannot be captured ({reason})") from error
    for buffer, value in zip(forward.buffers(), before, strict=True):
        buffer.copy_(value)


def keep_compiled_code() -> None:
    """Let torch.compile keep its code for later runs in the user's own cache folder, since loading it executes it.

    `TORCHINDUCTOR_CACHE_DIR` and `TRITON_CACHE_DIR` name other folders.
    """
    folder = Path("~/.cache/data-to-model/compiled").expanduser()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
