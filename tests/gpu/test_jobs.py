"""Jobs on a GPU: out of memory, several GPUs, and predicting what the CPU predicts."""

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from storage import manifest, tables
from storage.kinds import CHECKPOINT, DatasetURI
from storage.uri import Root
from tasks.jobs.events import ERROR
from tasks.jobs.main import run_here
from tasks.jobs.spec import JobSpec
from tasks.learning import images, training_state
from tasks.learning.inference import Inference
from tasks.resources.needs import Limits, Needs, needs_of
from tasks.runners.jobs_api import JOB_ENV
from tasks.stages import Predict, Train
from tests.jobs import raw
from tests.runs import CHECKOUT

GPU_BYTES = 2 * 2**30
"""What a job may take; ResNet-18 with 1,400 rows at once takes more: 367 MB for the output of its first layer."""
LIMIT_S = 480
"""Seconds after which a job that still runs is ended; longer ones wait for what will not come."""
_RAY = {**JOB_ENV, "RAY_ADDRESS": "local", "RAY_AUTH_MODE": "token", "RAY_USAGE_STATS_ENABLED": "0"}
"""A job's environment and a Ray of its own: without an address it would join the last one that this machine had."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def to_train(root: Root, prepared: DatasetURI, device: torch.device, *, name: str, **changes: Any) -> Train:
    """The job that trains a small model on `device`, by Ray with one worker."""
    usual = {"model": "small-cnn", "epochs": 2, "batch_size": 64, "device": device.type}
    rows = DatasetURI(root.child(f"datasets/prepared/{prepared.name}"))
    spec = raw.to_train(root, rows, name=name, **usual | changes)
    return spec.model_copy(update={"workers": 1})


def run_by_ray(stage: Train, **env: str) -> tuple[int, str]:
    """Exit code of a job in a process of its own, which ends by itself or after `LIMIT_S`, and what it has printed."""
    needs = needs_of(stage.recipe, stage.workers)
    file = JobSpec(stage=stage, limits=Limits(stage_s=LIMIT_S), needs=needs, threads=1).write()
    plain = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    own = {"PYTHONPATH": str(CHECKOUT), "RAY_AUTH_TOKEN": secrets.token_hex(32)}
    with subprocess.Popen(
        [sys.executable, "-m", "tasks.jobs", "train", file],
        env=plain | _RAY | own | env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            output, _ = process.communicate(timeout=LIMIT_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
    return process.returncode, output


def test_training_that_needs_too_much_memory_ends_with_advice_and_fits_in_pieces(
    gpu: torch.device, prepared: DatasetURI, folder: Root
) -> None:
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 1400, "model": "resnet18-3x3"}
    share = min(1.0, GPU_BYTES / torch.cuda.get_device_properties(gpu).total_memory)
    limit = {"PYTORCH_ALLOC_CONF": f"per_process_memory_fraction:{share:.4f}"}
    whole = to_train(folder, prepared, gpu, name="whole", **settings)
    code, output = run_by_ray(whole, **limit)
    assert code == 1, output[-4000:]
    (error,) = [json.loads(line.partition(ERROR)[2]) for line in output.splitlines() if ERROR in line]
    assert error["permanent"] and error["message"].startswith("OutOfMemoryError: "), error
    assert not manifest.is_committed(whole.target)
    code, output = run_by_ray(to_train(folder, prepared, gpu, name="pieces", micro_batches=16, **settings), **limit)
    assert code == 0, output[-4000:]


def test_two_gpus_train_with_half_of_each_batch_and_learn_as_one_does(
    gpu: torch.device, prepared: DatasetURI, folder: Root
) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    losses = []
    for workers in (1, 2):
        spec = to_train(folder, prepared, gpu, name=f"workers-{workers}", epochs=8, precision="fp32")
        code, output = run_by_ray(spec.model_copy(update={"workers": workers}))
        assert code == 0, output[-4000:]
        statistics = manifest.load(spec.target).statistics_of(CHECKPOINT)
        assert statistics.resolved.workers == workers
        losses.append(statistics.history[-1].validation_loss)
    assert losses[1] == pytest.approx(losses[0], rel=0.1, abs=0.01)


@pytest.mark.parametrize("precision", ["fp32", "auto"])
def test_model_that_was_trained_on_a_device_predicts_there_what_it_predicts_on_the_cpu(
    device: torch.device, prepared: DatasetURI, folder: Root, precision: str
) -> None:
    trained = to_train(folder, prepared, device, name="model", precision=precision).model_copy(update={"workers": 0})
    to_predict = Predict(checkpoint=trained.target, dataset=prepared, split="test")
    needs = Needs(device="cuda" if device.type == "cuda" else "cpu")
    for stage in (trained, to_predict):
        run_here(JobSpec(stage=stage, limits=Limits(stage_s=LIMIT_S), needs=needs, threads=1), tell=lambda line: None)
    assert training_state.load_model(trained.target)[1].resolved.device == device.type
    predicted = tables.read_split(to_predict.target).sort_by("id")
    pixels, _ = images.to_arrays(tables.read_split(prepared, "test").sort_by("id"), (32, 32, 3))
    expected = Inference(trained.target, threads=1, device=torch.device("cpu")).probabilities(pixels)
    columns = np.stack([predicted[f"probability_{name}"].to_numpy() for name in raw.CLASSES], axis=1)
    np.testing.assert_allclose(columns, expected, atol=1e-3 if precision == "fp32" else 0.05)
    assert np.ptp(columns, axis=0).max() > 0.1, "it tells images apart"
    inference = Inference(trained.target, threads=1, device=device)
    assert inference.batch_size == (4096 if device.type == "cuda" else 512), "a small model's batches fit"
