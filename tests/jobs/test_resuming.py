"""Interrupted work is resumed on whatever hardware and versions, read once, and the manifest lists all of them."""

import shutil
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from storage import files, manifest
from storage.kinds import CHECKPOINT, PREDICTIONS, DatasetURI
from storage.uri import Root
from tasks.jobs.errors import JobFailed
from tasks.jobs.train import attempts, train_loop
from tasks.learning import hardware
from tasks.learning.checkpoint import META, Meta
from tasks.resources import scaling
from tasks.stages import Train
from tests.jobs import raw
from tests.jobs.raw import run

pytestmark = pytest.mark.usefixtures("more_models")


def to_train(folder: Path, prepared: DatasetURI, **changes: Any) -> Train:
    return raw.to_train(Root(str(folder)), prepared, **changes)


def use_hardware(patch: pytest.MonkeyPatch, parts: str = "fp32 on cpu: another, torch 2.99.0") -> None:
    """Let this process be on other hardware."""
    patch.setattr(hardware, "here", lambda *_, **__: parts)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, prepared: DatasetURI, more_models: None) -> Train:
    """A training of one epoch that is committed."""
    spec = to_train(tmp_path_factory.mktemp("trained"), prepared, epochs=1)
    run(spec)
    return spec


class TestTraining:
    def test_another_torch_and_precision_go_on_where_the_first_ones_were(
        self, prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = to_train(tmp_path, prepared, epochs=4, precision="auto")
        with monkeypatch.context() as patch:
            use_hardware(patch, "bf16 on cpu: this, torch 2.99.0")
            patch.setattr(train_loop, "resolve_precision", lambda *_: "bf16")
            raw.train(spec, cut=4)
        monkeypatch.setattr(train_loop, "resolve_precision", lambda *_: "fp32")
        assert raw.train(spec) == [4]
        statistics = manifest.load(spec.target).statistics_of(CHECKPOINT)
        assert statistics.resolved.precision == "fp32"
        first, second = statistics.hardware
        assert first == "bf16 on cpu: this, torch 2.99.0"
        assert second.startswith("fp32 on cpu: ") and second.endswith(f", torch {torch.__version__}")
        assert not statistics.is_reproducible

    def test_training_that_only_lacks_its_commit_is_committed_as_it_is(
        self, prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = to_train(tmp_path, prepared)
        with monkeypatch.context() as patch:
            use_hardware(patch)
            patch.setattr(attempts, "commit", Mock(side_effect=RuntimeError("no commit")))
            with pytest.raises(JobFailed, match="no commit"):
                run(spec)
        assert raw.train(spec) == []
        statistics = manifest.load(spec.target).statistics_of(CHECKPOINT)
        assert statistics.is_reproducible
        assert statistics.hardware == ("fp32 on cpu: another, torch 2.99.0",)

    @pytest.mark.parametrize(("is_mixed", "used"), [(False, 2), (True, 1)])
    def test_resume_takes_the_threads_of_another_machine_only_as_far_as_this_one_has_them(
        self, prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_mixed: bool, used: int
    ) -> None:
        spec, threads = to_train(tmp_path, prepared), torch.get_num_threads()
        try:
            monkeypatch.setattr(scaling, "threads_here", lambda *_, **__: 2)
            raw.train(spec, cut=2)
            monkeypatch.setattr(scaling, "threads_here", lambda *_, **__: 1)
            if is_mixed:
                use_hardware(monkeypatch)
            assert (raw.train(spec, cut=3), torch.get_num_threads()) == ([2], used)
        finally:
            torch.set_num_threads(threads)
        _, meta = next(attempts.described(spec.scratch))
        assert (meta.epoch, meta.resolved.threads) == (2, used)

    def test_training_of_a_gpu_goes_on_without_one(
        self, prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec = to_train(tmp_path, prepared).model_copy(update={"workers": None})
        with monkeypatch.context() as patch:
            use_hardware(patch, "bf16 on cuda: NVIDIA H100")
            raw.train(spec, cut=3)
        for file in Path(spec.scratch).glob(f"attempt-1/epoch-*/{META}"):
            meta = Meta.model_validate_json(file.read_bytes())
            resolved = meta.resolved.model_copy(update={"device": "cuda", "precision": "bf16"})
            on_gpu = meta.model_copy(update={"resolved": resolved})
            file.write_text(on_gpu.signed().model_dump_json())
        assert attempts.workers_before(spec) == 1, "`auto` keeps the number of workers that it began with"
        assert raw.train(spec) == [3]
        statistics = manifest.load(spec.target).statistics_of(CHECKPOINT)
        assert statistics.resolved.device == "cpu"
        assert [part.split()[2] for part in statistics.hardware] == ["cuda:", "cpu:"]


def test_only_one_kind_of_cpu_in_fp32_is_reproducible() -> None:
    here = hardware.here(torch.device("cpu"), precision="fp32")
    for parts in ((here, f"{here}, another"), (here.replace("cpu", "cuda"),), (here.replace("fp32", "bf16"),)):
        assert not hardware.is_reproducible(parts)
    assert hardware.is_reproducible((here,))


@pytest.mark.parametrize(("change", "num_reused"), [("nothing", 3), ("versions", 3), ("weights", 0)])
def test_parts_of_an_interrupted_prediction_are_used_with_whatever_version_if_the_weights_are_the_same(
    trained: Train, prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str, num_reused: int
) -> None:
    root, first = Root(str(tmp_path)), trained
    if change == "weights":
        first = to_train(tmp_path, prepared, epochs=1, seed=1)
        run(first)
    spec = raw.to_predict(root, first.target, raw.write(root, shape=(12, 12, 1), train=60, test=30))
    with monkeypatch.context() as patch:
        if change == "versions":
            use_hardware(patch)
        run(spec)
    parts = [file.path for file in manifest.load(spec.target).files]
    for name in [manifest.NAME, *parts[:3]]:
        files.remove(spec.target.child(name))
    if change == "weights":
        files.remove(first.target)
        shutil.copytree(trained.target, first.target)
    run(spec)
    statistics = manifest.load(spec.target).statistics_of(PREDICTIONS)
    assert (statistics.reused_parts, len(statistics.hardware)) == (num_reused, 1 + (change == "versions"))
    assert statistics.is_reproducible == (change != "versions")
