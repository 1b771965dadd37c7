"""Jobs on a GPU: out of memory, several GPUs, and predicting what the CPU predicts."""

from typing import Any

import numpy as np
import pytest
import torch

from storage import manifest, tables
from storage.kinds import CHECKPOINT
from storage.uri import DatasetURI, Root
from tasks.jobs.main import run_here
from tasks.jobs.spec import JobSpec
from tasks.learning import images, training_state
from tasks.learning.inference import Inference
from tasks.resources.needs import Limits, Needs
from tasks.stages import Predict
from tests.gpu.jobs import LIMIT_S, Job, to_train
from tests.jobs import raw

GPU_BYTES = 2 * 2**30
"""What a job may take; ResNet-18 with 1,400 rows at once takes more: 367 MB for the output of its first layer."""
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def test_training_that_needs_too_much_memory_ends_with_advice_and_fits_in_pieces(
    gpu: torch.device, prepared: DatasetURI, folder: Root
) -> None:
    settings: dict[str, Any] = {"epochs": 1, "batch_size": 1400, "model": "resnet18-3x3"}
    share = min(1.0, GPU_BYTES / torch.cuda.get_device_properties(gpu).total_memory)
    limit = {"PYTORCH_ALLOC_CONF": f"per_process_memory_fraction:{share:.4f}"}
    whole = to_train(folder, prepared, gpu, name="whole", **settings)
    job = Job(whole, **limit)
    assert job.exit_code == 1, job.output[-4000:]
    assert job.error["permanent"] and job.error["message"].startswith("OutOfMemoryError: "), job.error
    assert not manifest.is_committed(whole.target)
    job = Job(to_train(folder, prepared, gpu, name="pieces", micro_batches=16, **settings), **limit)
    assert job.exit_code == 0, job.output[-4000:]


def test_two_gpus_train_with_half_of_each_batch_and_learn_as_one_does(
    gpu: torch.device, prepared: DatasetURI, folder: Root
) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    losses = []
    for workers in (1, 2):
        spec = to_train(folder, prepared, gpu, name=f"workers-{workers}", epochs=8, precision="fp32")
        job = Job(spec.model_copy(update={"workers": workers}))
        assert job.exit_code == 0, job.output[-4000:]
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
