"""URIs on a terminal of 80 columns, and in files."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from storage import files, in_use, lease, terminal
from storage.uri import Root
from tests.runs import CHECKOUT
from tests.storage import results
from tests.storage.results import DATA, Model
from tests.terminal import typed

NAME = "a-data-set-with-quite-a-long-name"


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A root that lies in the working directory of the terminal, as ./data does, in a folder with a space."""
    return Root(str(tmp_path / "my project" / "data"))


@pytest.fixture
def model(root: Root) -> Model:
    """The champion, and an attempt that was cut off."""
    model = results.run(root, NAME)
    results.decide(root, model)
    results.write_scratch(root, results.place(root, "checkpoint", "cut-off"), recipe={"epochs": 4})
    return model


def _uris(model: Model, root: Root, *, below: str) -> list[str]:
    return [f"{below}{uri.removeprefix(root)}" for uri in vars(model).values()]


def test_control_characters_of_a_name_are_shown_and_not_obeyed(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.show("class \x1b]52;c;ZXZpbA==\x07 \x1b[2J\r\x9b1m \u202egnp.exe\tä猫\nnext line")
    assert capsys.readouterr().out == (
        "class \\x1b]52;c;ZXZpbA==\\x07 \\x1b[2J\\r\\x9b1m \\u202egnp.exe\tä猫\nnext line\n"
    )


def test_no_uri_is_broken_by_a_line_end_at_a_terminal(root: Root, model: Model) -> None:
    folder = Path(root).parent
    here = _uris(model, root, below="data")
    needless = _uris(results.run(root, f"{NAME}-old"), root, below="data")
    for words, named in [
        (["ls"], [*here, "data/runs/"]),
        (["show", "data/evaluations/" + model.evaluation.name], [here[4], here[3]]),
        (["lineage", model.report], here),
        (["champion"], [here[2]]),
        (["champion", DATA], [here[2]]),
        (["gc", "--keep-days", "0", "--dry-run"], needless),
        (["rollback", "nonsense"], ["data"]),
        (["verify", "data/no-such-place"], ["data/no-such-place"]),
    ]:
        _, lines = typed(["-m", "storage", *words], folder=folder)
        assert lines and max(map(len, lines)) <= 80, (words, lines)
        for uri in named:
            assert any(uri in line for line in lines), (words, uri, lines)


def test_a_root_elsewhere_is_shown_in_full_and_whole_though_it_holds_spaces(
    root: Root, model: Model, tmp_path: Path
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for words in (["ls", "--storage", root], ["lineage", model.report], ["show", model.report]):
        _, lines = typed(["-m", "storage", *words], folder=elsewhere)
        assert any(line.strip("│ ").startswith(model.predictions) for line in lines) or words[0] != "lineage"
        assert any(model.report in line for line in lines), lines
        assert all(len(line) <= 80 or line.strip("│├└─ ").startswith(root) for line in lines), lines


def test_a_file_gets_every_uri_in_full_on_the_line_that_tells_of_it(root: Root, model: Model) -> None:
    command = [sys.executable, "-m", "storage", "ls", "--storage", root]
    env = os.environ | {"COLUMNS": "80", "PYTHONPATH": str(CHECKOUT)}
    done = subprocess.run(command, env=env, cwd=Path(root).parent, capture_output=True, text=True, check=True)
    lines = done.stdout.splitlines()
    assert [line for line in lines if "  checkpoint  " in line and line.endswith(f"  {model.checkpoint}")]
    assert not done.stderr and len(lines) == 1 + len(vars(model)) + 2


def test_json_is_the_same_at_a_terminal(root: Root, model: Model) -> None:
    _, lines = typed(["-m", "storage", "show", "--json", model.report], folder=Path(root).parent)
    assert "\n".join(lines) + "\n" == files.read(model.report.child("_manifest.json")).decode()


@pytest.mark.parametrize(
    ("line", "folded"),
    [
        ("it fits", ["it fits"]),
        ("", [""]),
        ("one two  three four", ["one two", "    three", "    four"]),
        ("removed  /a/uri  (why)", ["removed", "    /a/uri", "    (why)"]),
        ("raw  /as/long/as/a/line", ["raw", "/as/long/as/a/line"]),
        ("├─ raw  /a/uri", ["├─ raw", "│      /a/uri"]),
        ("│  └─ xyz  /ab", ["│  └─ xyz", "│         /ab"]),
    ],
)
def test_a_line_is_broken_between_words_only(line: str, folded: list[str]) -> None:
    assert terminal.fold(line, 13) == folded


def test_paths_below_the_working_directory_are_told_as_one_types_them_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert terminal.short(f"at {tmp_path}/data/x: {tmp_path}") == f"at data/x: {tmp_path}"
    for other in (f"s3://bucket{tmp_path}/data", f"/copy{tmp_path}/data", f"{tmp_path}2/data"):
        assert terminal.short(other) == other
    monkeypatch.chdir("/")
    assert terminal.short("/data") == "/data"


class TestUnfinishedWork:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Root:
        return Root(str(tmp_path / "data"))

    def test_training_is_at_work_while_it_holds_its_lease_and_cut_off_after(self, root: Root, tmp_path: Path) -> None:
        target = results.place(root, "checkpoint", "mine")
        scratch = results.write_scratch(root, target, recipe={"epochs": 4})
        for epoch in (1, 2):
            files.create(scratch.child(f"attempt-1/epoch-{epoch:04d}/checkpoint.json"), b"{}")
        files.create(scratch.child("attempt-1/epoch-0003/weights.safetensors"), b"half of it")
        with lease.held(root, target, owner="a job") as held:
            assert held
            host = lease.holder(root, target).host  # type: ignore[union-attr]
            (line,) = _said(tmp_path)
        assert line.startswith(f"running on {host}  train  2 of 4 epochs done  last written 20")
        assert line.endswith(f"  {scratch}")
        with in_use.using(root, [target], owner="a run that prepares its data again"):
            assert _said(tmp_path)[0].startswith("waiting  train  2 of 4")
        cut_off, hint = _said(tmp_path)
        assert cut_off.startswith("interrupted  train  2 of 4 epochs done  last written 20")
        assert hint.startswith("interrupted: no result yet; run the same command again")

    def test_what_is_committed_is_not_unfinished(self, root: Root, tmp_path: Path) -> None:
        model = results.run(root, "done")
        results.write_scratch(root, model.checkpoint)
        assert len(_said(tmp_path)) == 1 + len(vars(model))

    def test_preparation_and_prediction_are_told_too_and_only_the_kinds_asked_for(
        self, root: Root, tmp_path: Path
    ) -> None:
        for stage, kind in (("preprocess", "prepared"), ("predict", "predictions")):
            files.create(root.child(f"runs/{results.place(root, kind, stage).name}/{stage}-{64 * '0'}.json"), b"{}")
        assert [line.split()[1] for line in _said(tmp_path)[:-1]] == ["preprocess", "predict"]
        assert [line.split()[1] for line in _said(tmp_path, "predictions")[:-1]] == ["predict"]


def _said(folder: Path, *kinds: str) -> list[str]:
    command = [sys.executable, "-m", "storage", "ls", *kinds]
    env = os.environ | {"PYTHONPATH": str(CHECKOUT)}
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()
