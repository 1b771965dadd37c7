"""Unfinished work of another torch or machine is detected and reported, and mixed with new work only on request."""

import os
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from storage import files, manifest
from storage.uri import URI, DatasetURI, PredictionsURI, Root
from tasks.cluster.job_log import JobFailed
from tasks.jobs import scaling
from tasks.jobs.spec import JobSpec, PredictSpec, TrainSpec
from tasks.jobs.train import attempts, single_process, train_loop
from tasks.learning import checkpoint, checkpoint_result, loop, models, numerics, resume, training_state
from tasks.learning.checkpoint import META, Meta
from tasks.learning.numerics import Numerics
from tasks.learning.optimizer import AdamW
from tests.faults import injection
from tests.jobs import raw
from tests.jobs.raw import run
from tests.learning.training import MORE_MODELS, same

pytestmark = pytest.mark.usefixtures("more_models")

ELSEWHERE = {"ATEN_CPU_CAPABILITY": "default"}
"""The environment of a process that computes as on a machine with fewer instructions."""
AFTER_TWO_EPOCHS = {"point": "write", "at": "/epoch-0003/"}
"""Where a training is killed of which two epochs are safe."""
_PROGRAM = """
import sys
from tasks.jobs import spec
from tasks.learning import models
from tests.jobs import raw
models.__path__.append(sys.argv[1])
raw.run(getattr(spec, sys.argv[2]).model_validate_json(sys.argv[3]))
"""


def process(spec: JobSpec, *, env: Mapping[str, str] = {}, killed_at: Mapping[str, Any] | None = None) -> str:
    """What a process of its own logged that did the work of `spec`, to the end unless it is killed at a point."""
    folder = Path(spec.storage)
    fault = {"rank": None, "skip": 0, "action": "kill", "once": str(folder / "once"), **(killed_at or {})}
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(MORE_MODELS), type(spec).__name__, spec.model_dump_json()],
        env={**os.environ, **injection.environment(folder / "history", fault if killed_at else None), **env},
        stderr=subprocess.PIPE,
        text=True,
    )
    assert done.returncode == (-9 if killed_at else 0), done.stderr
    return done.stderr


def weights(spec: TrainSpec) -> dict[str, torch.Tensor]:
    """What was committed."""
    return training_state.load_model(spec.target)[0].state_dict()


def instructions(statistics: Mapping[str, Any], name: str = "numerics") -> list[str]:
    """Of each of the numerics that a manifest names."""
    return [one["instructions"] for one in statistics.get(name, ())]


def to_train(folder: Path, prepared: DatasetURI, **changes: Any) -> TrainSpec:
    return raw.to_train(Root(str(folder)), prepared, **changes)


def accepting(spec: TrainSpec) -> TrainSpec:
    return spec.model_copy(update={"accept_mixed_numerics": True})


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, prepared: DatasetURI) -> TrainSpec:
    """A training of one epoch that is committed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "__path__", [*models.__path__, str(MORE_MODELS)])
        spec = to_train(tmp_path_factory.mktemp("trained"), prepared, epochs=1)
        run(spec)
    return spec


class TestTraining:
    @pytest.fixture
    def epochs_done(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The epochs that are trained from here on; the one numbered `cut` is not."""
        done: list[int] = []
        run_epoch = loop.Trainer.run_epoch

        def recorded(trainer: loop.Trainer, epoch: int, **how: Any) -> Any:
            if epoch == self.cut:
                raise KeyboardInterrupt
            done.append(epoch)
            return run_epoch(trainer, epoch, **how)

        monkeypatch.setattr(loop.Trainer, "run_epoch", recorded)
        return done

    cut = 0

    def interrupt(self, spec: TrainSpec, *, at: int) -> None:
        """Train the epochs before `at`."""
        self.cut = at
        with pytest.raises(KeyboardInterrupt):
            run(spec)
        self.cut = 0

    @staticmethod
    def torch_was(monkeypatch: pytest.MonkeyPatch, version: str) -> None:
        """From here on this is another version of torch."""
        monkeypatch.setattr(torch, "__version__", version)

    @pytest.mark.slow
    def test_process_on_another_machine_begins_anew_and_says_so(self, prepared: DatasetURI, tmp_path: Path) -> None:
        whole, cut = (to_train(tmp_path, prepared, name=name) for name in ("whole", "cut"))
        run(whole)
        process(cut, env=ELSEWHERE, killed_at=AFTER_TWO_EPOCHS)
        log = process(cut)
        assert "WARNING: epochs up to 2 were computed with other numerics (instructions was" in log
        assert "training restarts from the beginning" in log and "--accept-mixed-numerics" in log
        made, undisturbed = (manifest.load(spec.target).statistics for spec in (cut, whole))
        assert same(weights(cut), weights(whole))
        assert made["numerics"] == undisturbed["numerics"] and len(made["numerics"]) == 1
        assert (
            instructions(made, "numerics_set_aside") != instructions(made) and "numerics_set_aside" not in undisturbed
        )
        (note,) = numerics.notes(made, what="the training")
        assert "not used" in note

    @pytest.mark.slow
    def test_process_that_accepts_the_mix_goes_on_and_the_manifest_lists_both(
        self, prepared: DatasetURI, tmp_path: Path
    ) -> None:
        spec = accepting(to_train(tmp_path, prepared))
        process(spec, env=ELSEWHERE, killed_at=AFTER_TWO_EPOCHS)
        log = process(spec)
        assert "WARNING: epochs 1 to 2 were computed with other numerics" in log and "resuming from them" in log
        made = manifest.load(spec.target).statistics
        assert len(set(instructions(made))) == 2 and "numerics_set_aside" not in made
        (note,) = numerics.notes(made, what="the training")
        assert note.startswith("the training used mixed numerics")

    def test_another_version_of_torch_begins_anew_and_the_first_one_goes_on_where_it_was(
        self, prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs_done: list[int]
    ) -> None:
        spec = to_train(tmp_path, prepared, epochs=4)
        self.interrupt(spec, at=4)
        with monkeypatch.context() as patch:
            self.torch_was(patch, "2.99.0")
            self.interrupt(spec, at=2)
        run(spec)
        assert epochs_done == [1, 2, 3, 1, 4]
        made = manifest.load(spec.target).statistics
        assert [one["torch"] for one in made["numerics"]] == [str(torch.__version__)]

    def test_best_epoch_is_that_of_the_same_numerics(
        self, prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs_done: list[int]
    ) -> None:
        spec = to_train(tmp_path, prepared)
        with monkeypatch.context() as patch:
            self.torch_was(patch, "2.99.0")
            patch.setattr(AdamW, "step", lambda optimizer: None)  # as if all came out differently
            self.interrupt(spec, at=3)
        run(spec)
        model, meta = training_state.load_model(spec.target)
        assert meta.history == manifest.load(spec.target).statistics["history"] and len(epochs_done) == 5
        again = to_train(tmp_path, prepared, name="again")
        run(again)
        assert same(model.state_dict(), weights(again))

    def test_checkpoint_of_an_earlier_version_is_not_gone_on_from_unless_accepted(
        self, prepared: DatasetURI, tmp_path: Path, caplog: pytest.LogCaptureFixture, epochs_done: list[int]
    ) -> None:
        anew, accepted = (to_train(tmp_path, prepared, name=name) for name in ("anew", "accepted"))
        for spec in (anew, accepted):
            self.interrupt(spec, at=3)
            for place in Path(spec.scratch).glob(f"attempt-1/epoch-*/{META}"):
                meta = Meta.model_validate_json(place.read_bytes())
                unknown = meta.model_copy(update={"numerics": None, "set_aside": None}).signed()
                content = unknown.model_dump_json(exclude={"numerics", "set_aside"})
                place.write_text(content)
        run(anew)
        assert "they are from an earlier version, which did not record numerics); training restarts" in caplog.text
        run(accepting(accepted))
        assert epochs_done == [1, 2, 1, 2, 1, 2, 3, 3]
        assert manifest.load(accepted.target).statistics["numerics"][0] == numerics.UNKNOWN.model_dump()

    def test_training_that_only_lacks_its_commit_is_committed_as_it_is(
        self, prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs_done: list[int]
    ) -> None:
        spec = to_train(tmp_path, prepared)
        with monkeypatch.context() as patch:
            self.torch_was(patch, "2.99.0")
            patch.setattr(checkpoint_result, "commit", lambda *_, **__: self.fail())
            with pytest.raises(JobFailed, match="no commit"):
                run(spec)
        run(spec)
        assert epochs_done == [1, 2, 3]
        assert [one["torch"] for one in manifest.load(spec.target).statistics["numerics"]] == ["2.99.0"]

    @staticmethod
    def fail() -> None:
        raise RuntimeError("no commit")

    def test_workers_that_come_back_with_others_in_the_same_attempt_leave_it_to_a_fresh_one(
        self, prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs_done: list[int]
    ) -> None:
        spec = to_train(tmp_path, prepared)
        self.interrupt(spec, at=3)
        self.torch_was(monkeypatch, "2.99.0")
        with monkeypatch.context() as patch:
            patch.setattr(attempts, "new_attempt", lambda scratch: "attempt-1")  # as when Ray Train starts them again
            with pytest.raises(JobFailed, match="NumericsChanged: epochs up to 2 were computed with other numerics"):
                run(spec)
        run(spec)
        assert epochs_done == [1, 2, 1, 2, 3]

    def test_other_kind_of_device_or_precision_begins_anew_rather_than_being_refused(
        self, prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs_done: list[int]
    ) -> None:
        spec = to_train(tmp_path, prepared, precision="auto")
        with monkeypatch.context() as patch:
            patch.setattr("tasks.jobs.train.train_loop.resolve_precision", lambda *_: "bf16")
            self.interrupt(spec, at=2)
        monkeypatch.setattr("tasks.jobs.train.train_loop.resolve_precision", lambda *_: "fp32")
        run(spec)
        made = manifest.load(spec.target).statistics
        assert epochs_done == [1, 1, 2, 3] and made["resolved"]["precision"] == "fp32"
        assert [one["precision"] for one in made["numerics_set_aside"]] == ["bf16"]

    def test_ranks_of_which_one_has_no_bf16_compute_in_fp32(
        self, prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spec, gathered = to_train(tmp_path, prepared, precision="auto", epochs=1), train_loop._gathered

        def with_another(value: Any, world_size: int) -> list[Any]:
            return [value, "fp32"] if value == "bf16" else gathered(value, world_size)

        monkeypatch.setattr(train_loop, "resolve_precision", lambda *_: "bf16")
        monkeypatch.setattr(train_loop, "_gathered", with_another)
        run(spec)
        made = manifest.load(spec.target).statistics
        assert made["resolved"]["precision"] == made["numerics"][0]["precision"] == "fp32"

    @pytest.mark.parametrize(
        ("before", "now", "is_mixed", "used"), [(2, 1, False, 2), (1, 2, False, 1), (2, 1, True, 1), (1, 2, True, 1)]
    )
    def test_resume_takes_the_threads_of_another_machine_only_as_far_as_this_one_has_them(
        self,
        prepared: DatasetURI,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        epochs_done: list[int],
        before: int,
        now: int,
        is_mixed: bool,
        used: int,
    ) -> None:
        spec, threads = accepting(to_train(tmp_path, prepared)), torch.get_num_threads()
        try:
            monkeypatch.setattr(scaling, "threads_here", lambda *_, **__: before)
            self.interrupt(spec, at=2)
            monkeypatch.setattr(scaling, "threads_here", lambda *_, **__: now)
            if is_mixed:
                self.torch_was(monkeypatch, "2.99.0")
            self.interrupt(spec, at=3)
            assert (epochs_done, torch.get_num_threads()) == ([1, 2], used)
        finally:
            torch.set_num_threads(threads)
        _, meta = next(checkpoint.complete_checkpoints(spec.scratch))
        assert (meta.epoch, meta.resolved["threads"]) == (2, used)

    def test_training_of_a_gpu_goes_on_without_one_where_that_is_asked_for_and_the_mix_is_told(
        self, prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epochs_done: list[int]
    ) -> None:
        spec, here = accepting(to_train(tmp_path, prepared)), Numerics.here

        def there(device: torch.device, *, precision: str) -> Numerics:
            return here(device, precision=precision).model_copy(update={"device": "cuda", "processor": "NVIDIA H100"})

        with monkeypatch.context() as patch:
            patch.setattr(Numerics, "here", there)
            self.interrupt(spec, at=3)
        for place in Path(spec.scratch).glob(f"attempt-1/epoch-*/{META}"):
            meta = Meta.model_validate_json(place.read_bytes())
            was = meta.model_copy(update={"resolved": meta.resolved | {"device": "cuda", "precision": "bf16"}})
            place.write_text(was.signed().model_dump_json())
        automatic = spec.model_copy(update={"workers": None})
        strict = automatic.model_copy(update={"accept_mixed_numerics": False})
        rows = manifest.load(spec.source)
        kept = [attempts.workers_before(one, rows, device=at) for one in (automatic, strict) for at in ("cuda", "cpu")]
        assert kept == [1, 1, 1, None], "`auto` keeps the number of workers that it began with"
        changed = rows.model_copy(update={"files": []})
        assert attempts.workers_before(automatic, changed, device="cuda") is None
        run(spec)
        made = manifest.load(spec.target).statistics
        assert epochs_done == [1, 2, 3] and made["resolved"]["device"] == "cpu"
        assert [one["device"] for one in made["numerics"]] == ["cuda", "cpu"]
        (note,) = numerics.notes(made, what="the training")
        assert note.startswith("the training used mixed numerics") and "NVIDIA H100" in note


class TestChoice:
    def test_differences_are_named_field_by_field(self) -> None:
        here = Numerics.here(torch.device("cpu"), precision="fp32")
        other = here.model_copy(update={"processor": "another"})
        assert numerics.together([here, other], [here]) == (here, other)
        assert numerics.differences([here], [other]) == f"processor was {here.processor!r} and is 'another'"
        assert str(other) in numerics.differences([here], [here, other])

    def test_every_rank_counts(self, prepared: DatasetURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        spec = to_train(tmp_path, prepared)
        monkeypatch.setattr(attempts, "commit", lambda *_, **__: None)  # so that its epochs stay
        single_process.run(spec)
        here = Numerics.here(torch.device("cpu"), precision="fp32")
        other = here.model_copy(update={"processor": "another"})
        choose = partial(resume.choose, spec.scratch, epochs=9)
        goes_on, begins, accepts = (
            choose(now=now, accept_mixed=accept)
            for now, accept in (([here, here], False), ([here, other], False), ([here, other], True))
        )
        assert goes_on.uri and (goes_on.numerics, goes_on.set_aside, goes_on.warning) == ((here,), (), None)
        assert begins.uri is None and (begins.numerics, begins.set_aside) == ((here, other), (here,))
        assert accepts.uri == goes_on.uri and accepts.numerics == (here, other)


class TestPrediction:
    @staticmethod
    def to_predict(folder: Path, trained: TrainSpec, *, accept: bool = False) -> PredictSpec:
        """The job that predicts a raw dataset of six parts."""
        root = Root(str(folder))
        place = root.child("datasets/raw/small-0123456789ab")
        rows = raw.write(root, shape=(12, 12, 1), train=60, test=30) if not files.exists(place) else DatasetURI(place)
        return PredictSpec(
            storage=root,
            deadline_s=600,
            model=trained.target,
            source=rows,
            target=PredictionsURI(root.child("predictions/small-0123456789ab")),
            split=None,
            workers=0,
            accept_mixed_numerics=accept,
        )

    def test_parts_of_another_machine_are_predicted_anew_and_it_is_said(
        self, trained: TrainSpec, tmp_path: Path
    ) -> None:
        spec = self.to_predict(tmp_path, trained)
        process(spec, env=ELSEWHERE, killed_at={"point": "write", "at": "/predictions/", "skip": 3})
        log = process(spec)
        assert log.count("WARNING: existing parts were predicted with other numerics (instr") == 1
        made = manifest.load(spec.target)
        assert made.statistics["reused_parts"] == 0 and len(made.files) == 6
        assert len(made.statistics["numerics"]) == len(made.statistics["numerics_set_aside"]) == 1
        whole = self.to_predict(tmp_path / "whole", trained)
        run(whole)
        assert manifest.load(whole.target).files == made.files

    @pytest.mark.slow
    def test_parts_are_used_where_the_mix_is_accepted_and_the_manifest_lists_both(
        self, trained: TrainSpec, tmp_path: Path
    ) -> None:
        spec = self.to_predict(tmp_path, trained, accept=True)
        process(spec, env=ELSEWHERE, killed_at={"point": "write", "at": "/predictions/", "skip": 3})
        log = process(spec)
        assert "WARNING: parts of this result have different numerics, as allowed by --accept-mixed-numerics" in log
        made = manifest.load(spec.target).statistics
        assert made["reused_parts"] == 3 and len(set(instructions(made))) == 2
        assert "numerics_set_aside" not in made

    def test_parts_of_the_same_machine_are_used(self, trained: TrainSpec, tmp_path: Path) -> None:
        spec = self.to_predict(tmp_path, trained)
        process(spec, killed_at={"point": "write", "at": "/predictions/", "skip": 3})
        log = process(spec)
        assert "WARNING" not in log
        assert manifest.load(URI(str(spec.target))).statistics["reused_parts"] == 3
