"""Code of the real ranks (gloo, on loopback) of `test_loop.py`: each writes its results to a file."""

import datetime
import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import start_processes

from storage.statistics import EpochMetrics
from tasks.learning.loop import Batch
from tests.learning import training

WORLD_SIZE = 2
BATCH_SIZE = 9
"""Odd: rank 0 takes five rows a step, rank 1 four."""
Shards = tuple[tuple[int, int], tuple[int, int]]
"""First and one-past-last training row of each rank."""
SHARDS, STEP, STEPS = ((0, 41), (41, 115)), ((0, 5), (5, BATCH_SIZE)), ((0, 15), (15, 27))
"""Uneven ones for an epoch; the rows of one step, and of three."""
VALIDATION = ((0, 13), (13, 600))
"""Likewise of the validation rows; the second rank needs two batches for its own."""


def start(ranks: Callable[..., None], *arguments: Any, world_size: int) -> None:
    """Run `ranks(rank, *arguments)` in a process for each rank; what they import is imported once for all of them."""
    multiprocessing.set_forkserver_preload([__name__])
    start_processes(ranks, arguments, nprocs=world_size, start_method="forkserver")  # type: ignore[no-untyped-call]


@training.more_models()
def run(rank: int, folder: str) -> None:
    """Everything that is done by two ranks, in one go: their start takes longer than all the rest."""
    _meet(rank, folder, world_size=WORLD_SIZE)
    digits = torch.load(Path(folder) / "digits.pt", weights_only=True)
    results = {
        "epoch": one_epoch(rank, digits, SHARDS),
        "step": one_epoch(rank, digits, STEP, model="small"),
        "step in pieces": one_epoch(rank, digits, STEP, model="small", micro_batches=3),
        "weighted": one_epoch(rank, digits, STEP, model="small", class_weights="balanced"),
        "weighted in pieces": one_epoch(rank, digits, STEP, model="small", class_weights="balanced", micro_batches=3),
        "idle": one_epoch(rank, digits, STEPS, model="idle"),
        "idle in pieces": one_epoch(rank, digits, STEPS, model="idle", micro_batches=2),
    }
    torch.save(results, Path(folder) / f"rank-{rank}.pt")
    _part()


@training.more_models()
def resume(rank: int, folder: str, world_size: int, settings: dict[str, Any], after: int) -> None:
    """All epochs of a run, and those after epoch `after` again from its checkpoint: the weights of both."""
    _meet(rank, folder, world_size=world_size)
    digits = torch.load(Path(folder) / "digits.pt", weights_only=True)
    train, validation = (part(digits[split], (12 * rank, 12 * rank + 12)) for split in ("train", "test"))
    recipe, checkpoint = training.recipe(batch_size=4 * world_size, **settings), f"{folder}/epoch-{after}"
    whole, resumed = (training.trainer(recipe, train, validation, rank=rank) for _ in range(2))
    dropped: list[torch.Tensor] = []
    for module in whole.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.register_forward_hook(lambda module, inputs, output: dropped.append(output == 0))
    history = list[EpochMetrics]()
    for epoch in range(1, recipe.finetuning.epochs + 1):
        history.append(whole.run_epoch(epoch))  # ends after every rank has met, and so after a checkpoint was written
        if rank == 0 and epoch == after:
            training.save(whole, history, checkpoint)
    training.resume(resumed, checkpoint)
    for epoch in range(after + 1, recipe.finetuning.epochs + 1):
        resumed.run_epoch(epoch)
    tensors: dict[str, Any] = {"whole": training.weights(whole), "resumed": training.weights(resumed)}
    tensors["dropped"] = dropped[0] if dropped else torch.empty(0)
    torch.save(tensors, Path(folder) / f"rank-{rank}.pt")
    _part()


def _meet(rank: int, folder: str, *, world_size: int) -> None:
    torch.set_num_threads(1)
    if sys.platform == "linux":
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    meeting = (Path(folder) / "meeting").as_uri()
    limit = datetime.timedelta(seconds=120)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world_size, timeout=limit)


def _part() -> None:
    """End this process once every rank is done: gloo's threads sometimes abort it while the interpreter ends."""
    dist.barrier()
    dist.destroy_process_group()
    os._exit(0)


def one_epoch(rank: int, digits: dict[str, Batch], shards: Shards, **changes: Any) -> dict[str, object]:
    """The weights and gradients that this rank ends with, and what it reports."""
    recipe = training.recipe(batch_size=BATCH_SIZE, epochs=1, max_shift=0, **changes)
    train, validation = part(digits["train"], shards[rank]), part(digits["test"], VALIDATION[rank])
    trainer = training.trainer(recipe, train, validation, rank=rank)
    metrics = trainer.run_epoch(1)
    gradients = {name: weight.grad for name, weight in trainer.model.named_parameters()}
    return {"weights": training.weights(trainer), "gradients": gradients, "metrics": vars(metrics)}


def part(rows: Batch, bounds: tuple[int, int]) -> Batch:
    """Rows from the first to the one before the last of `bounds`."""
    return rows[0][slice(*bounds)], rows[1][slice(*bounds)]
