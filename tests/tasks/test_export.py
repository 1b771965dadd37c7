"""An export is a result that gives what the model gives on every test row, or there is none."""

import json
import sys
from pathlib import Path

import onnx
import pytest

from flows.__main__ import main
from flows.cli import app
from storage import commits, files, manifest
from storage.kinds import EXPORT, CheckpointURI, ExportURI
from storage.uri import Root
from tests.finished import Finished
from tests.jobs import raw
from tests.learning.conftest import more_models

__all__ = ["more_models"]


def export(model: CheckpointURI, *words: str, root: Root) -> int:
    return app.main(words=["export", model, "--storage", root, *words])


@pytest.fixture(scope="module")
def checkpoint(finished: Finished) -> CheckpointURI:
    """A small model of three classes, with 80 test rows."""
    return finished.champion.train.target


@pytest.fixture(scope="module")
def exported(checkpoint: CheckpointURI, tmp_path_factory: pytest.TempPathFactory) -> ExportURI:
    root = Root(str(tmp_path_factory.mktemp("exported")))
    assert export(checkpoint, root=root) == 0
    (name,) = files.children(root.child("exports"))
    return ExportURI(root.child(f"exports/{name}"))


def test_file_says_what_goes_in_and_out_and_nothing_of_this_machine(
    exported: ExportURI, checkpoint: CheckpointURI
) -> None:
    content = files.read(exported.child("model.onnx"))
    proto = onnx.load_from_string(content)
    onnx.checker.check_model(proto, full_check=True)
    assert proto.ir_version <= 8 and [one.version for one in proto.opset_import] == [18], "read by ONNX Runtime 1.16"
    values = [*proto.graph.input, *proto.graph.output]
    shapes = {one.name: [dim.dim_param or dim.dim_value for dim in one.type.tensor_type.shape.dim] for one in values}
    assert shapes == {"images": ["batch", 24, 24, 3], "probabilities": ["batch", 3], "embedding": ["batch", 64]}
    (images_in,) = proto.graph.input
    assert images_in.type.tensor_type.elem_type == onnx.TensorProto.UINT8
    assert {entry.key: entry.value for entry in proto.metadata_props}["checkpoint"] == checkpoint.name
    assert b".py" not in content and str(Path(__file__).parents[2]).encode() not in content


def test_card_says_how_good_the_model_is_and_how_far_the_file_differs(
    exported: ExportURI, capsys: pytest.CaptureFixture[str]
) -> None:
    made = manifest.load(exported)
    assert [file.path for file in made.files] == ["model.onnx", "README.md", "preprocess.py"]
    recorded = made.statistics_of(EXPORT)
    assert recorded.proof.rows == 80 and 0 < recorded.proof.largest_difference < 1e-5
    card = files.read(exported.child("README.md")).decode()
    facts = [f"{recorded.test_accuracy:.4f}", f"{recorded.macro_f1:.4f}", "all 80 test rows"]
    facts += [f"{recorded.proof.largest_difference:.1e}", made.parents["checkpoint"].digest]
    assert [fact for fact in facts if fact not in card] == []
    assert str(Path(exported).parents[1]) not in card, "names of results, no paths of this machine"
    assert main(["ls", "export", "--storage", Root(exported.parent.parent)]) == 0
    assert f"{recorded.test_accuracy:.4f}" in capsys.readouterr().out


def test_export_that_was_cut_off_is_made_by_the_same_command(
    checkpoint: CheckpointURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    root = Root(str(tmp_path))
    with monkeypatch.context() as patch:
        patch.setattr(commits, "commit", interrupted)
        assert export(checkpoint, root=root) == 130
    (name,) = files.children(root.child("exports"))
    assert not manifest.is_committed(root.child(f"exports/{name}"))
    capsys.readouterr()
    assert export(checkpoint, "--json", root=root) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["uris"]["export"].endswith(name) and not document["reused"]
    assert [path.rpartition("/")[2] for path in document["files"]] == ["model.onnx", "README.md", "preprocess.py"]
    assert export(checkpoint, "--json", root=root) == 0
    again = json.loads(capsys.readouterr().out)
    assert again == document | {"reused": True}


@pytest.mark.usefixtures("more_models")
@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("two-faced", "not exported: the file does not give what the model gives: probabilities of test row"),
        ("branching", "the model cannot be exported: its code cannot be traced for any number of images"),
    ],
)
def test_model_whose_export_would_be_wrong_is_not_exported(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, says: str
) -> None:
    trained = raw.to_train(Root(str(tmp_path)), finished.plan.preprocess.target, name=model, model=model, epochs=1)
    raw.run(trained)
    capsys.readouterr()
    assert export(trained.target, root=Root(str(tmp_path))) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {says}")
    assert not list(tmp_path.glob("exports/*"))


def test_without_the_extra_the_line_says_how_to_install_it(
    checkpoint: CheckpointURI, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)  # as Python notes a package that is not there
    assert export(checkpoint, root=Root(str(tmp_path))) == 2
    assert "needs onnxruntime; run: pip install onnxruntime" in capsys.readouterr().err


def test_model_whose_test_rows_are_gone_is_not_exported(
    finished: Finished, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = finished.copy_to(tmp_path / "root")
    files.remove(copy.plan.preprocess.target)
    assert export(copy.plan.train.target, root=copy.root) == 2
    assert "cannot be proven" in capsys.readouterr().err
