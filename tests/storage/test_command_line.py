"""Commands on storage as a user sees them: output and exit codes."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from storage import access, files, manifest, registry
from storage.uri import URI, Root
from tests import committed, documented
from tests.committed import DATA, SOURCE, Model
from tests.finished import Finished
from tests.s3 import Server
from tests.storage.conftest import Answer, Ask

CHECKOUT = Path(files.__file__).parents[1]


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A root on a disk."""
    return Root(f"{tmp_path}/root")


@pytest.fixture
def model(root: Root) -> Model:
    """The champion of a root that holds nothing else."""
    model = committed.run(root, "model")
    committed.decide(root, model)
    return model


def damage_file(uri: URI, how: str) -> URI:
    """Damage the first file of a committed result."""
    place = uri.child(manifest.load(uri).files[0].path)
    content = files.read(place)
    changes = {"flipped": content[:-1] + bytes([content[-1] ^ 1]), "truncated": content[:-1]}
    files.remove(place) if how == "missing" else files.put(place, changes[how])
    return place


def documents(root: Root, ask: Ask, *words: str) -> dict[str, dict[str, Any]]:
    """What `ls` lists as JSON, by URI."""
    answer = ask("ls", *words, "--json", "--storage", root)
    assert answer.code == 0
    return {document["uri"]: document for document in json.loads("\n".join(answer.out))}


class TestLs:
    def test_every_result_of_the_requested_kinds_has_a_line_oldest_first_or_a_document(
        self, root: Root, model: Model, ask: Ask
    ) -> None:
        answer = ask("ls", "--storage", root)
        assert (answer.code, answer.err) == (0, [])
        assert [line.split()[-1] for line in answer.out[1:]] == list(vars(model).values())
        header = "created kind rows files size accuracy balanced macro F1 mark name"
        assert " ".join(answer.out[0].split()) == header
        recorded = manifest.load(model.raw)
        assert answer.out[1].startswith(f"{recorded.created.astimezone():%Y-%m-%d %H:%M}  raw ")
        assert answer.out[1].split()[2:5] == ["raw", "9", "2"]
        document = documents(root, ask, "raw")[model.raw]
        assert document.keys() == documented.keys("One result of `ls`")
        size = sum(file.size for file in recorded.files)
        values = [document[name] for name in ("created", "kind", "rows", "bytes", "files")]
        assert values == [recorded.created.isoformat(timespec="seconds"), "raw", 9, size, 2]
        later = committed.run(root, "a-later-run")
        answer = ask("ls", "report", "checkpoint", "--storage", root)
        expected = [model.checkpoint, model.report, later.checkpoint, later.report]
        assert [line.split()[-1] for line in answer.out[1:]] == expected

    def test_accuracy_of_a_model_and_its_results_is_the_accuracy_on_its_own_test_rows(
        self, root: Root, model: Model, ask: Ask
    ) -> None:
        other = committed.run(root, "other").prepared
        predictions = committed.result(root, "predictions", "elsewhere", checkpoint=model.checkpoint, dataset=other)
        evaluation = committed.place(root, "evaluation", "elsewhere")
        committed.commit(evaluation, "evaluation", parents={"predictions": predictions}, test_accuracy=0.5)
        unjudged = committed.result(root, "checkpoint", "unjudged", prepared=model.prepared)
        accuracies = {uri: document["test_accuracy"] for uri, document in documents(root, ask).items()}
        assert accuracies[predictions] == accuracies[evaluation] == 0.5
        assert {accuracies[uri] for uri in (model.checkpoint, model.predictions, model.report)} == {0.987654321}
        assert accuracies[unjudged] is None
        (line,) = [line for line in ask("ls", "--storage", root).out if line.endswith(model.checkpoint)]
        assert "  0.9877    0.8765    0.7654  champion  " in line

    def test_marks_show_champion_incomplete_and_unreadable(self, root: Root, model: Model, ask: Ask) -> None:
        dead = committed.place(root, "predictions", "dead")
        committed.write_part(dead)
        files.put(model.report.child(manifest.NAME), b"garbage")
        committed.write_scratch(root, committed.place(root, "checkpoint", "mine"))
        marks = {uri: document["marks"] for uri, document in documents(root, ask).items() if document["marks"]}
        expected = {model.checkpoint: ["champion"], dead: ["incomplete"], model.report: ["unreadable"]}
        assert marks == expected

    def test_garbled_registry_and_a_root_without_results_have_a_line_on_stderr(self, root: Root, ask: Ask) -> None:
        files.put(root.child("notes.txt"), b"")
        assert ask("ls", "--storage", root) == Answer(0, [], [f"there are no results below {root}"])
        assert ask("ls", "--json", "--storage", root) == Answer(0, ["[]"], [])
        committed.run(root, "model")
        files.put(root.child("registry/letters/000001.json"), b"garbage")
        answer = ask("ls", "--storage", root)
        assert (answer.code, len(answer.out), len(answer.err)) == (1, 7, 1)
        assert "letters/000001.json cannot be read" in answer.err[0]


class TestLineage:
    def test_tree_goes_back_to_the_raw_checksums(self, model: Model, ask: Ask) -> None:
        answer = ask("lineage", model.predictions)
        assert (answer.code, answer.err) == (0, [])
        assert answer.out == [
            f"predictions  {model.predictions}",
            f"  checkpoint  {model.checkpoint}",
            f"    prepared  {model.prepared}",
            f"      raw  {model.raw}",
            f"        {SOURCE['name']}  sha256 {SOURCE['sha256']}  from {SOURCE['url']}",
            f"  dataset  {model.prepared}  (see above)",
        ]

    def test_checksums_are_listed_below_the_files_or_the_raw_dataset_of_deleted_files(
        self, root: Root, ask: Ask
    ) -> None:
        downloaded = committed.result(root, "files", "model")
        raw = committed.result(root, "raw", "model", files=downloaded)
        source = f"{SOURCE['name']}  sha256 {SOURCE['sha256']}  from {SOURCE['url']}"
        answer = ask("lineage", raw)
        assert (answer.code, answer.out) == (0, [f"raw  {raw}", f"  files  {downloaded}", f"    {source}"])
        files.remove(downloaded)
        answer = ask("lineage", raw)
        missing = f"  files  {downloaded}  MISSING: not committed"
        assert (answer.code, answer.out) == (1, [f"raw  {raw}", missing, f"  {source}"])

    @pytest.mark.parametrize(
        ("change", "words"),
        [
            (lambda uri: files.remove(uri.child(manifest.NAME)), "MISSING: not committed"),
            (lambda uri: files.put(uri.child(manifest.NAME), b"garbage"), "DAMAGED: "),
            (lambda uri: damage_file(uri, "truncated"), "bytes instead of"),
        ],
    )
    def test_parent_that_is_not_whole_is_shown_as_such(
        self, model: Model, ask: Ask, change: Callable[[URI], object], words: str
    ) -> None:
        change(model.prepared)
        answer = ask("lineage", model.checkpoint)
        assert (answer.code, answer.err, answer.out[0]) == (1, [], f"checkpoint  {model.checkpoint}")
        assert answer.out[1].startswith(f"  prepared  {model.prepared}  ") and words in answer.out[1]


class TestVerify:
    def test_whole_root_is_found_whole(self, root: Root, model: Model, ask: Ask) -> None:
        committed.write_part(committed.place(root, "predictions", "dead"))
        committed.write_part(model.raw, rows=7)
        for options in ([], ["--deep"]):
            answer = ask("verify", "--storage", root, *options)
            assert (answer.code, answer.err, len(answer.out)) == (0, [], 1)
            sound = "all files match their checksums" if options else "all files present, sizes match"
            assert answer.out[0].startswith(f"OK: {sound} (6 results, 12 files, ")

    @pytest.mark.parametrize(
        ("how", "options", "code"),
        [("missing", [], 1), ("truncated", [], 1), ("flipped", [], 0), ("flipped", ["--deep"], 1)],
    )
    def test_each_damaged_file_has_a_line(
        self, root: Root, model: Model, ask: Ask, how: str, options: list[str], code: int
    ) -> None:
        spoiled = [damage_file(model.raw, how), damage_file(model.report, how)]
        answer = ask("verify", "--storage", root, *options)
        assert (answer.code, answer.err) == (code, [])
        assert [line.split()[0] for line in answer.out[:-1]] == (spoiled if code else [])
        assert ask("verify", model.checkpoint, *options).code == 0
        assert ask("verify", model.checkpoint, model.report, *options).code == code

    @pytest.mark.parametrize(
        ("place", "content", "words"),
        [
            ("{raw}/_manifest.json", b"garbage", "_manifest.json cannot be read"),
            ("{root}/registry/digits/000002.json", b"garbage", "000002.json cannot be read"),
            ("{root}/registry/digits/000001.json", None, "000001.json is missing"),
            ("{checkpoint}/_manifest.json", None, "the champion of digits, is not committed"),
        ],
    )
    def test_manifests_and_decisions_are_read(
        self, root: Root, model: Model, ask: Ask, place: str, content: bytes | None, words: str
    ) -> None:
        committed.decide(root, model)
        spoiled = URI(place.format(root=root, **vars(model)))
        files.remove(spoiled) if content is None else files.put(spoiled, content)
        answer = ask("verify", "--storage", root)
        assert (answer.code, answer.err, len(answer.out)) == (1, [], 2)
        assert words in answer.out[0]


class TestChampion:
    def test_decisions_by_hand_are_printed_with_time_and_user_and_a_rollback_is_called_one(
        self, root: Root, model: Model, ask: Ask, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("LOGNAME", "ada")
        other = committed.run(root, "other")
        committed.decide(root, model, challenger=other)
        ask("promote", other.checkpoint, "--reason", "sees  the new camera")
        assert [ask("rollback", DATA, "--storage", root).code for _ in range(2)] == [0, 2], "there is only one before"
        *_, by_hand, back = registry.history(root, DATA)
        promoted, rolled_back = (
            each.decided.astimezone().strftime("%Y-%m-%d %H:%M") for each in (by_hand, back) if each.decided
        )
        assert ask("history", DATA, "--storage", root).out == [
            f"000001  promoted  {model.checkpoint}",
            "        it is better",
            f"000002  rejected  {other.checkpoint}",
            "        it is worse",
            f"000003  promoted  {other.checkpoint}",
            f"        {promoted} by ada: promoted by hand: sees the new camera",
            f"000004  rollback  {model.checkpoint}",
            f"        {rolled_back} by ada: rolled back by hand from checkpoints/{other.checkpoint.name}",
            f"champion: {model.checkpoint}",
        ]
        committed.decide(root, other, data="letters")
        files.put(root.child("registry/damaged/000001.json"), b"garbage")
        answer = ask("history", "--storage", root)
        assert (answer.code, len(answer.err)) == (1, 1) and "damaged/000001.json cannot be read" in answer.err[0]
        assert answer.out[0] == f"digits   {model.checkpoint}  it is better", "the decision that promoted it"
        assert answer.out[1].startswith(f"letters  {other.checkpoint} ")


def test_gc_deletes_what_its_dry_run_lists(root: Root, model: Model, ask: Ask) -> None:
    old = committed.run(root, "old")
    committed.write_part(model.raw, rows=9)
    for uri in old.all() | model.all():
        committed.set_age(uri, days=40)
    before = committed.listing(root)
    assert len(ask("gc", "--dry-run", "--keep-days", "41", "--storage", root).out) == 1
    dry = ask("gc", "--dry-run", "--storage", root)
    assert committed.listing(root) == before
    wet = ask("gc", "--storage", root)
    assert (dry.code, dry.err, wet.code, wet.err) == (0, [], 0, [])
    assert [line.replace("would delete", "deleted") for line in dry.out[:-1]] == wet.out[:-1]
    assert wet.out[-1].startswith("Deleted 7 items (") and dry.out[-1].startswith("Dry run: would delete 7 items (")
    assert sum("/old-" not in path for path in set(before) - set(committed.listing(root))) == 1
    assert ask("verify", "--deep", "--storage", root).code == 0


def test_gc_trusts_no_clock_that_is_not_the_storages(
    root: Root, model: Model, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    before, now = committed.listing(root), time.time() + 40 * 24 * 3600
    monkeypatch.setattr(time, "time", lambda: now)
    for options in ([], ["--dry-run"]):
        answer = ask("gc", *options, "--storage", root)
        assert (answer.code, answer.out, len(answer.err)) == (2, [], 1)
        assert f"--storage: the clocks of {root} and of this machine differ by 40 days" in answer.err[0]
    assert committed.listing(root) == before


READERS = [["ls"], ["history"], ["history", DATA], ["verify"], ["gc", "--dry-run"]]
WRITERS = [["gc"], ["rollback", DATA]]


class TestWrongRequests:
    def test_missing_root_is_refused_and_not_created(self, root: Root, ask: Ask) -> None:
        for command in [*READERS, *WRITERS]:
            answer = ask(*command, "--storage", root.child("nowhere"))
            assert (answer.code, answer.out, len(answer.err)) == (2, [], 1)
            assert answer.err[0].startswith(f"error: --storage: {root}/nowhere does not exist or is empty; ")
        assert not os.path.exists(root)

    def test_what_only_reads_writes_nothing(
        self, root: Root, model: Model, ask: Ask, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for verb in ("put", "remove"):
            monkeypatch.delattr(files, verb)
        monkeypatch.delattr(access, "check_writable")
        for command in READERS[:-1]:  # gc writes a file to read the storage's clock
            assert ask(*command, "--storage", root).code == 0
        assert ask("history", f"champion:{DATA}", "--storage", root) == ask("history", DATA, "--storage", root)
        words = (model.checkpoint, model.checkpoint.name, "champion", f"champion:{DATA}")
        for reader in ("show", "lineage", "verify"):
            first, *others = [ask(reader, word, "--storage", root) for word in words]
            assert first.code == 0 and others == [first] * 3

    def test_uri_where_nothing_is_committed_is_refused_and_not_searched(
        self, root: Root, model: Model, ask: Ask, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delattr(files, "walk")
        for command in ("show", "lineage", "verify", "promote"):
            for uri in (root, *map(root.child, ("datasets/raw/nowhere", "datasets", "registry/digits/000001.json"))):
                answer = ask(command, uri)
                assert (answer.code, answer.out, len(answer.err)) == (2, [], 1)
                assert answer.err[0].startswith("error: uri: ") and uri in answer.err[0]


def test_traceback_of_an_unexpected_exception_is_shown_only_on_request(
    root: Root, model: Model, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "walk", lambda uri: 1 / 0)
    answer = ask("ls", "--storage", root)
    assert (answer.code, answer.err[0]) == (1, "error: ZeroDivisionError: division by zero")
    monkeypatch.setenv("PIPELINE_TRACEBACK", "1")
    with pytest.raises(ZeroDivisionError):
        ask("ls", "--storage", root)


def test_every_command_does_the_same_on_s3(s3: Server, ask: Ask) -> None:
    root = Root(f"s3://{s3.bucket}/command-line")
    first, second = committed.run(root, "first"), committed.run(root, "second")
    committed.decide(root, first)
    assert ask("promote", second.checkpoint, "--register-as", DATA).out == [
        f"{second.checkpoint} is now the champion of digits"
    ]
    assert ask("rollback", DATA, "--storage", root).code == 0
    assert ask("history", "--storage", root).out[0].startswith(f"digits  {first.checkpoint}  ")
    assert len(ask("ls", "--storage", root).out) == 13 and len(ask("lineage", second.report).out) > 5
    assert ask("show", first.raw).out == files.read(first.raw.child(manifest.NAME)).decode().splitlines()
    assert ask("gc", "--keep-days", "1", "--storage", root).out == ["Deleted 0 items (0 bytes)"]
    assert ask("verify", "--deep", "--storage", root).out[-1].startswith("OK: all files match their checksums (12 res")


class TestProcess:
    def test_paths_may_be_relative_and_end_with_a_slash(
        self, tmp_path: Path, ask: Ask, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = committed.run(Root(f"{tmp_path}/data"), "model")
        monkeypatch.chdir(tmp_path)
        assert model.raw.fingerprint in str(ask("show", os.path.relpath(model.raw, tmp_path) + "/").out)
        assert len(ask("ls").out) == 7
        monkeypatch.chdir("/")
        monkeypatch.setenv("PIPELINE_STORAGE", f"{tmp_path}/data/")
        assert len(ask("ls").out) == 7

    @pytest.mark.usefixtures("integration")
    def test_undecodable_file_names_are_printed_escaped(self, tmp_path: Path) -> None:
        model = committed.run(Root(f"{tmp_path}/data"), "model")
        stray = Path(os.fsdecode(f"{model.raw}/".encode() + b"stray-\xff"))
        stray.touch()
        os.utime(stray, (0, 0))
        env = {**os.environ, "PYTHONPATH": str(CHECKOUT), "PYTHONIOENCODING": "ascii"}
        command = [sys.executable, "-m", "flows", "gc", "--dry-run"]
        answer = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True)
        assert (answer.returncode, answer.stderr) == (0, "")
        assert "stray-\\udcff" in answer.stdout


def test_runs_have_their_changes_metrics_decision_and_times(finished: Finished, ask: Ask) -> None:
    champion, last = documents(finished.root, ask, "runs").values()
    assert last.keys() == documented.keys("One run of `ls runs`")
    assert (champion["changes"]["epochs"], last["changes"]["epochs"], last["uri"]) == (8, 2, finished.report)
    judged = [(row["promoted"], row["champion"], row["test_accuracy"]) for row in (champion, last)]
    assert judged == [(True, True, 1.0), (False, False, finished.data.evaluated["metrics"]["test_accuracy"])]
    assert (last["recipe"], last["registered_model"]) == ("images-small-cnn", finished.plan.registered_model)
    answer = ask("ls", "runs", "--storage", finished.root)
    header = "created registered model recipe changed accuracy balanced macro F1 seconds mark run"
    assert (answer.code, " ".join(answer.out[0].split())) == (0, header)
    changes = [f"{name}={value}" for name, value in champion["changes"].items()]
    row = ["images-small-cnn", *changes, *(3 * ["1.0000"]), "-", "champion", champion["uri"]]
    assert answer.out[1].split()[3:] == row


def test_damaged_report_and_registry_are_named_and_the_rest_is_listed(
    finished: Finished, tmp_path: Path, ask: Ask
) -> None:
    copy = finished.copy_to(tmp_path / "copy")
    files.put(copy.report.child(manifest.NAME), b"garbage")
    decision = f"registry/{copy.plan.registered_model}/000002.json"
    files.put(copy.root.child(decision), b"garbage")
    answer = ask("ls", "runs", "--storage", copy.root)
    assert (answer.code, len(answer.out)) == (1, 2) and " epochs=8 " in answer.out[1]
    lines = str(answer.err)
    assert f"{copy.report}/_manifest.json cannot be read" in lines and f"{decision} cannot be read" in lines
