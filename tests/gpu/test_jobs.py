"""Jobs on a GPU: killed and resumed, out of memory, and predicting what the CPU predicts."""

import importlib.util
from typing import Any

import numpy as np
import pytest
import torch

from storage import manifest, tables
from storage.uri import DatasetURI, PredictionsURI, Root
from tasks.jobs.main import run_here
from tasks.jobs.spec import PredictSpec
from tasks.learning import images, training_state
from tasks.learning.inference import Inference
from tasks.resources.scaling import Needs
from tests.gpu.jobs import LIMIT_S, Job, running, to_train
from tests.jobs import raw

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed")
RUNNERS = [pytest.param(False, id="without Ray"), pytest.param(True, marks=[pytest.mark.slow, needs_ray], id="by Ray")]
EPOCHS = 12
GPU_BYTES = 2 * 2**30
"""What a job may take; ResNet-18 with 1,400 rows at once takes more: 367 MB for the output of its first layer."""
pytestmark = pytest.mark.timeout(1800)


@pytest.mark.slow
def test_training_that_was_killed_goes_on_from_its_checkpoint(
    device: torch.device, prepared: DatasetURI, folder: Root
) -> None:
    whole, cut = (to_train(folder, prepared, device, name=name, epochs=EPOCHS) for name in ("whole", "cut"))
    run_here(whole, tell=lambda line: None)
    with running(Job(cut, by_ray=False)) as job:
        job.trained(2)
        job.kill()
        assert job.ended() == -9 and not manifest.is_committed(cut.target), job.told
    with running(Job(cut, by_ray=False)) as job:
        assert job.ended() == 0, job.told
    assert "done before, resuming from its checkpoint" in "".join(job.output)
    expected, found = (manifest.load(spec.target).statistics["history"] for spec in (whole, cut))
    assert [row["epoch"] for row in found] == list(range(1, EPOCHS + 1))
    losses = [torch.tensor([row["validation_loss"] for row in history]) for history in (found, expected)]
    torch.testing.assert_close(*losses, rtol=0.1, atol=0.01)  # sums on a GPU are taken in any order


@needs_ray
@pytest.mark.slow
def test_training_whose_worker_was_killed_goes_on_in_a_new_one(
    device: torch.device, prepared: DatasetURI, folder: Root
) -> None:
    spec = to_train(folder, prepared, device, name="struck", epochs=40)
    with running(Job(spec, by_ray=True)) as job:
        job.trained(2)
        job.kill_worker()
        assert job.ended() == 0, job.told
    assert "done before, resuming from its checkpoint" in "".join(job.output)
    assert [row["epoch"] for row in manifest.load(spec.target).statistics["history"]] == list(range(1, 41))


@pytest.mark.parametrize("by_ray", RUNNERS)
def test_training_that_needs_too_much_memory_says_so_and_fits_in_pieces(
    gpu: torch.device, prepared: DatasetURI, folder: Root, by_ray: bool
) -> None:
    asked: dict[str, Any] = {"epochs": 1, "batch_size": 1400, "model": "resnet18-3x3"}
    share = min(1.0, GPU_BYTES / torch.cuda.get_device_properties(gpu).total_memory)
    limit = {"PYTORCH_ALLOC_CONF": f"per_process_memory_fraction:{share:.4f}"}
    whole = to_train(folder, prepared, gpu, name="whole", **asked)
    with running(Job(whole, by_ray=by_ray, **limit)) as job:
        assert job.ended() == 1, job.told
    assert (job.error["type"], job.error["permanent"]) == ("OutOfMemoryError", True), job.error
    assert "memory" in job.error["message"] and not manifest.is_committed(whole.target)
    pieces = to_train(folder, prepared, gpu, name="pieces", accumulation=16, **asked)
    with running(Job(pieces, by_ray=by_ray, **limit)) as job:
        assert job.ended() == 0, job.told


@pytest.mark.parametrize("precision", ["fp32", "auto"])
@pytest.mark.parametrize("by_ray", RUNNERS)
def test_model_that_was_trained_on_a_device_predicts_there_what_it_predicts_on_the_cpu(
    device: torch.device, prepared: DatasetURI, folder: Root, by_ray: bool, precision: str
) -> None:
    trained = to_train(folder, prepared, device, name="model", precision=precision)
    to_predict = PredictSpec(
        storage=folder,
        deadline_s=LIMIT_S,
        threads=1,
        model=trained.target,
        source=trained.source,
        target=PredictionsURI(folder.child("predictions/model-0123456789ab")),
        split="test",
        workers=1,
        needs=Needs(device="cuda" if device.type == "cuda" else "cpu"),
    )
    for spec in (trained, to_predict):
        if not by_ray:
            run_here(spec, tell=lambda line: None)
            continue
        with running(Job(spec, by_ray=True)) as job:
            assert job.ended() == 0, job.told
    assert training_state.load_model(trained.target)[1].resolved["device"] == device.type
    found = tables.read_split(to_predict.target).sort_by("id")
    rows = tables.read_split(trained.source, "test").sort_by("id")
    pixels, _ = images.to_arrays(rows, (32, 32, 3))
    expected = Inference(trained.target, threads=1, device=torch.device("cpu")).probabilities(pixels)
    columns = np.stack([found[f"probability_{name}"].to_numpy() for name in raw.CLASSES], axis=1)
    np.testing.assert_allclose(columns, expected, atol=1e-3 if precision == "fp32" else 0.05)
    assert np.ptp(columns, axis=0).max() > 0.1, "it tells images apart"
