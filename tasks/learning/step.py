"""The step of one rank: forward and backward pass of a batch, on a GPU also as a CUDA graph."""

import contextlib
import os
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from storage import error_policy
from storage.uri import URI, Root
from tasks.learning.augmentation import classes_of
from tasks.learning.modeling import Classifier, autocast
from tasks.learning.recipes import Recipe

_CACHE, _TRITON = "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"
"""Environment variables that name the folders for code compiled by torch.compile and by Triton."""
_WARM_UP_STEPS = 3
"""Eager steps before the capture of a graph, as torch recommends: in them libraries choose algorithms and allocate."""


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
        is_compiled = recipe.training.compile
        self.forward: Callable[[Tensor], Tensor] = (
            torch.compile(self.parallel, dynamic=False) if is_compiled else self.parallel
        )

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Accumulate the gradients of a batch piece by piece, add to `totals`, and return the summed loss.

        The loss of a row is multiplied by the weight of its class, if there are any. The sum over all rows of the
        global batch is divided by their number, not by the sum of their weights, whose mean over all training rows is
        1: so pieces and ranks add up to the same gradients as one batch of one rank.

        Args:
            images: uint8, BHWC.
            labels: int64, (B,), or mixed: float32, (B, classes).

        Returns:
            A scalar on the device.
        """
        batch_loss = torch.zeros((), device=self.device)
        pieces = list(zip(*(rows.chunk(self.recipe.training.micro_batches) for rows in (images, labels)), strict=True))
        for number, (some, targets) in enumerate(pieces, start=1):
            model, waits = self.parallel, number < len(pieces)  # ranks exchange gradients with the last piece
            with model.no_sync() if waits and isinstance(model, DistributedDataParallel) else contextlib.nullcontext():
                with autocast(self.precision, self.device):
                    logits = self.forward(some)
                smoothing = self.recipe.training.label_smoothing
                summed = cross_entropy(
                    logits.float(), targets, weight=self.class_weights, label_smoothing=smoothing, reduction="sum"
                )
                # DDP averages over ranks: with this factor, every row of the global batch has the same weight.
                (summed * (self.world_size / self.recipe.training.batch_size)).backward()
            batch_loss += summed.detach()
            self.totals[0] += summed.detach()
            self.totals[1] += (logits.detach().argmax(1) == classes_of(targets)).sum()
            self.totals[2] += len(targets)
        return batch_loss

    def _distributed(self) -> DistributedDataParallel:
        # A resumed process adds up gradients in the same order as an uninterrupted one. DDP rebuilds its buckets after
        # a process's first backward pass, and with three or more ranks the order of addition depends on a gradient's
        # place in its bucket; with two ranks, addition commutes. DDP keeps its first buckets if it looks for unused
        # parameters, which costs one pass through the graph per step.
        is_fixed = self.device.type == "cpu" and self.precision == "fp32" and self.world_size > 2
        is_static = self.recipe.training.micro_batches == 1  # every backward pass exchanges gradients
        # DDP waits for the gradient of every weight, also of those that never get one, unless its graph is static or it
        # looks for unused weights. On three and more CPUs in bf16 that would change the last bits.
        finds_unused = not is_static and (self.device.type == "cuda" or self.world_size == 2)
        # Copying gradients into their bucket together spares launches, but it divides by the number of ranks where
        # copying one by one multiplies by its inverse: with three CPU ranks the last bits would change.
        return DistributedDataParallel(
            self.model,
            gradient_as_bucket_view=True,
            batched_grad_copy=self.device.type == "cuda",
            forward_sync_buffers=False,  # `Trainer` sends those of rank 0 to all ranks, once per epoch
            find_unused_parameters=is_fixed or finds_unused,
            static_graph=is_static and not is_fixed,
        )


class GraphedStep:
    """A step whose batches lie in the same memory every time; on a GPU it is captured once and replayed from then on.

    A replay is one launch instead of hundreds. The first steps run eagerly, on the stream that captures. The graph
    ends with the gradients: the optimizer's one fused call follows it, because the schedule changes values (Adam's
    first beta) that a graph would freeze. A model may draw random numbers on the device, which each replay draws anew
    from the generator's seed. One that draws on the host stays eager; so does one whose capture fails, such as one that
    waits for the device.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self._held: tuple[Tensor, Tensor] | None = None
        """The batch, in the memory from which the graph reads it."""
        self._steps_so_far, self._is_eager = 0, False
        self._draws = True
        """Whether every step so far drew random numbers on the host, which a graph would freeze."""
        self._stream = torch.cuda.Stream(step.device) if step.device.type == "cuda" else None
        self.graph: torch.cuda.CUDAGraph | None = None
        """None until it is captured."""
        self._made: tuple[Tensor, list[tuple[nn.Parameter, Tensor | None]]]
        """Results of the graph: the loss, and every weight's gradient."""

    def __call__(self, images: Tensor, labels: Tensor) -> Tensor:
        """Do what `Step` does; the loss stays valid until the next call.

        Raises:
            ValueError: The model's step cannot be captured, and the recipe requires a graph.
        """
        if self._held is None:
            self._held = torch.empty_like(images), torch.empty_like(labels)
        for held, rows in zip(self._held, (images, labels), strict=True):
            held.copy_(rows)
        if self._stream is not None and self._steps_so_far < _WARM_UP_STEPS:
            return self._warm_up(self._stream)
        if self._stream is not None and self.graph is None and not self._is_eager:
            self.graph = self._captured(self._stream)
        if self.graph is None:
            return self.step(*self._held)
        self.graph.replay()
        loss, gradients = self._made
        for weight, gradient in gradients:  # the optimizer's were set to None
            weight.grad = gradient
        return loss

    def _warm_up(self, stream: torch.cuda.Stream) -> Tensor:
        assert self._held is not None
        before = _host_states()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            loss = self.step(*self._held)
        torch.cuda.current_stream().wait_stream(stream)
        self._steps_so_far += 1
        # Other threads may draw too, but are unlikely to do so in every one of these steps.
        self._draws = self._draws and _host_states() != before
        if self._steps_so_far == _WARM_UP_STEPS and self._draws:
            self._stay_eager("which draws random numbers on the host")
        return loss

    def _captured(self, stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph | None:
        """Return the captured step; None if it cannot be captured: then nothing was computed, and all is as before."""
        assert self._held is not None
        main, graph = torch.cuda.current_stream(), torch.cuda.CUDAGraph()
        cause: Exception | None = None
        try:
            # thread_local: another thread may copy a checkpoint meanwhile.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                try:
                    loss = self.step(*self._held)
                except Exception as error:
                    cause = error
                    raise
        except Exception as error:  # the end of a failed capture has an error of its own, and leaves its stream current
            torch.cuda.set_stream(main)
            self._recover(graph, cause or error)
            return None
        finally:
            cause = None  # its traceback holds memory of the graph
        self._made = loss, [(weight, weight.grad) for weight in self.step.model.parameters()]
        return graph

    def _recover(self, graph: torch.cuda.CUDAGraph, cause: Exception) -> None:
        """Give up `graph`, whose capture failed by `cause`."""
        if error_policy.is_out_of_memory(cause):
            raise cause
        for weight in self.step.model.parameters():
            weight.grad = None
        graph.reset()
        torch.cuda.synchronize()  # an error of the device itself is raised here
        says = f"{type(cause).__name__}: {next(iter(str(cause).splitlines()), '')}"
        self._stay_eager(f"whose step cannot be captured ({says})", cause)
        warnings.warn(
            f"step=auto: model {self.step.recipe.model} trains without a CUDA graph, since its step cannot be captured "
            f"({says}); use --set step=eager to skip the attempt",
            stacklevel=2,
        )

    def _stay_eager(self, why: str, cause: Exception | None = None) -> None:
        self._is_eager = True
        model = self.step.recipe.model
        if self.step.recipe.resources.step == "graph":
            raise ValueError(f"step must be eager or auto for model {model}, {why}, got 'graph'") from cause


@contextlib.contextmanager
def compiled_code(recipe: Recipe, *, root: Root) -> Iterator[None]:
    """Keep the code that torch.compile makes in the block, for later runs, in the user's cache folder.

    Loading the code executes it. So the folder must belong to this user alone, and lie outside of `root`, whose files
    may come from elsewhere; otherwise `ValueError`. `TORCHINDUCTOR_CACHE_DIR`, if set, names another folder. Triton's
    kernels are in the subfolder `triton`, or in `TRITON_CACHE_DIR` if that is set.
    """
    if not recipe.training.compile or _CACHE in os.environ:
        yield
        return
    cache = Path(os.environ.get("XDG_CACHE_HOME", ""))
    cache = cache if cache.is_absolute() else Path("~/.cache").expanduser()
    folder = cache / "data-to-model" / "compiled"
    if URI(str(folder)).lies_in(root) or not _is_private(folder):
        raise ValueError(
            f"compile=true needs {folder} as a folder of this user alone, outside of --storage; correct that, or set "
            f"{_CACHE} to such a folder"
        )
    added = {_CACHE: str(folder)} | ({} if _TRITON in os.environ else {_TRITON: str(folder / "triton")})
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            del os.environ[name]


def _is_private(folder: Path) -> bool:
    """Create `folder` if it is missing; return whether it could be, and this user alone may use it."""
    try:
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        status = folder.stat()
    except (OSError, RuntimeError):  # no home, or one that cannot be written
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o077


def _host_states() -> tuple[object, ...]:
    """Return the states of the host's global generators, to compare."""
    numpys = np.random.get_state(legacy=False)["state"]
    return random.getstate(), bytes(numpys["key"]), numpys["pos"], torch.get_rng_state().numpy().tobytes()
