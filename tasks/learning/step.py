"""The step of one rank: forward and backward pass of a batch, on a GPU also as CUDA graphs."""

import contextlib
import os
from collections.abc import Callable
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
        compiles: bool = False,
        say: Callable[[str], None] = print,
    ) -> None:
        self.recipe, self.precision, self.device, self.world_size = recipe, precision, device, world_size
        self.model, self.class_weights = model, class_weights
        self.parallel: nn.Module = self._distributed() if world_size > 1 else model
        self.totals = torch.zeros(3, dtype=torch.float64, device=device)
        """Loss, hits and rows since the totals were last set to zero."""
        self.launch = ""
        """How it runs, from its first call on: eager, compiled, graph or compiled graph."""
        self.launches = launches(recipe, device=device.type, world_size=world_size, compiles=compiles)
        """What its first call tries, one after the other."""
        self.forward: _Forward
        self.say = say

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Accumulate the gradients of a batch piece by piece, add to `totals`, and return the summed loss.

        Images are uint8, BHWC; labels int64, (B,), or mixed: float32, (B, classes). The sum over all rows of the global
        batch is divided by their number, not by the sum of their weights, whose mean over all training rows is 1: so
        pieces and ranks add up to the same gradients as one batch of one rank.
        """
        if not self.launch:
            self.forward = self._begin(images)
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

    def _begin(self, images: Tensor) -> "_Forward":
        """Return the forward pass in the first of `launches` that is possible; raise `ValueError` if none is."""
        for number, launch in enumerate(self.launches, start=1):
            module = self.parallel
            if "compiled" in launch:
                module = cast(nn.Module, torch.compile(module, dynamic=False))
            forward, self.launch = _Forward(module, self.precision, self.device), launch
            try:
                if "graph" in launch:
                    _capture(forward, images)
                break
            except Exception as error:
                if error_policy.is_out_of_memory(error):
                    raise
                reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
                what = f"for model {self.recipe.model}, which cannot be captured ({reason})"
                if number == len(self.launches):
                    raise ValueError(f"step must be auto or eager {what}") from error
                self.say(f"steps are {self.launches[number]} instead of {launch} {what}")
        return forward

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


def launches(recipe: Recipe, *, device: str, world_size: int, compiles: bool = False) -> list[str]:
    """Return how a step may run on a `device` of this type: each way is tried if the one before fails.

    `auto` captures only on a GPU, and compiles, if `compiles`, only what it captures.
    """
    must_compile, step = recipe.finetuning.compile == "on", recipe.resources.step
    is_possible = (device, world_size, recipe.finetuning.micro_batches) == ("cuda", 1, 1)
    graphs = ["compiled graph"] * (compiles or must_compile) + ["graph"] * (not must_compile)
    usual = ["compiled" if must_compile else "eager"]
    return {"graph": graphs, "auto": graphs * is_possible + usual, "eager": usual}[step]


class _Forward(nn.Module):
    """Forward pass of `model` at `precision`; a module of its own, since a capture replaces its `forward` for good."""

    def __init__(self, model: nn.Module, precision: str, device: torch.device) -> None:
        super().__init__()
        self.model, self.precision, self.device = model, precision, device

    def forward(self, images: Tensor) -> Tensor:
        with autocast(self.precision, self.device):
            logits: Tensor = self.model(images)
        return logits


def _capture(forward: _Forward, images: Tensor) -> None:
    """Let `forward` replay CUDA graphs of its forward and backward pass, for batches of the shape of `images`.

    Leaves no trace in running statistics, random numbers and the stream in use, also if it fails, for example because
    the model waits for the GPU. Other threads may use the GPU meanwhile.
    """
    before = [buffer.clone() for buffer in forward.buffers()]
    devices, stream = ([images.device], torch.cuda.current_stream()) if images.is_cuda else ([], None)
    try:
        # A capture that fails leaves its own stream in use (torch 2.14).
        with torch.random.fork_rng(devices), torch.cuda.stream(stream):
            torch.cuda.make_graphed_callables(
                forward, (images,), allow_unused_input=True, capture_error_mode="thread_local"
            )
    finally:
        for buffer, value in zip(forward.buffers(), before, strict=True):
            buffer.copy_(value)


def keep_compiled_code() -> None:
    """Let torch.compile keep its code for later runs in the user's own cache folder, since loading it executes it.

    `TORCHINDUCTOR_CACHE_DIR` and `TRITON_CACHE_DIR` name other folders.
    """
    folder = Path("~/.cache/data-to-model/compiled").expanduser()
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder))
    os.environ.setdefault("TRITON_CACHE_DIR", str(folder / "triton"))
