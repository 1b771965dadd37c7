"""A result names what it was made from and which bytes that had: it is found wherever its root lies, never mistaken.

Roots are moved and reached through links, on a disk and on S3.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from flows.__main__ import main
from storage import champions, files, manifest, reference, registry
from storage.admin import verify
from storage.admin.gc import Garbage
from storage.kinds import KINDS
from storage.uri import URI, Root
from tests import committed
from tests.committed import DATA, Model


def test_all_of_a_root_is_found_where_it_was_moved_to(root: Root) -> None:
    before, now = Root(root.child("before")), Root(root.child("now"))
    first, second = committed.run(before, "first"), committed.run(before, "second")
    for model in (first, second):
        committed.decide(before, model)
    champions.rollback(before, DATA)
    for path, content in committed.listing(before).items():
        files.put(now.child(path), content)
    files.remove(before)
    first, second = (
        Model(**{role: type(uri)(now.child(uri.removeprefix(f"{before}/"))) for role, uri in vars(model).items()})
        for model in (first, second)
    )
    lines, is_sound = verify.lineage(second.report, "report")
    assert is_sound
    assert {word for line in lines for word in line.split() if word.startswith(now)} == second.all()
    assert main(["ls", "--storage", now]) == main(["verify", "--deep", "--storage", now]) == 0
    assert registry.champion(now, DATA) == first.checkpoint
    assert registry.withdrawn(registry.history(now, DATA)) == {second.checkpoint}
    garbage = Garbage(now, keep_days=1, now=time.time() + 2 * 24 * 3600)
    assert {removal.uri for removal in garbage.remove(garbage.find())} == second.all()


def test_parent_below_another_root_keeps_its_uri_and_has_its_digest(
    root: Root, capsys: pytest.CaptureFixture[str]
) -> None:
    raw = committed.result(Root(root.child("other")), "raw", "model")
    prepared = committed.result(Root(root.child("own")), "prepared", "model", raw=raw)
    recorded = manifest.load(prepared)
    parent = json.loads(files.read(prepared.child(manifest.NAME)))["parents"]["raw"]
    assert (parent["uri"], parent["digest"]) == (raw, manifest.load(raw).digest)
    assert recorded.parent("raw", of=prepared) == raw
    verify = ["verify", "--storage", reference.root_of(prepared)]
    assert main(verify) == 0
    files.remove(raw)
    assert main(verify) == 1
    assert f"{raw}, of which {prepared} was made, is gone, perhaps by gc of its root" in capsys.readouterr().out


class TestOtherBytes:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Root:
        return Root(f"{tmp_path}/root")

    @pytest.fixture
    def model(self, root: Root) -> Model:
        return committed.run(root, "model")

    def make_again(self, uri: URI, *, rows: int, **statistics: Any) -> None:
        """What a person does to a damaged result: remove it, and have it made anew."""
        recorded = manifest.load(uri)
        files.remove(uri)
        listed = [committed.write_part(uri, split="train", rows=6), committed.write_part(uri, rows=rows)]
        parents = {role: recorded.parent(role, of=uri) for role in recorded.parents}
        committed.commit(uri, recorded.kind, listed, parents=parents, parameters=recorded.parameters, **statistics)

    def test_child_of_other_bytes_is_reported_with_its_parent(
        self, root: Root, model: Model, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.make_again(model.checkpoint, rows=4)
        assert main(["verify", "--storage", root]) == 0
        assert main(["verify", "--deep", "--storage", root]) == 1
        lines = capsys.readouterr().out.splitlines()[1:-1]
        words = f"was made from other bytes of {model.checkpoint} than exist now"
        assert [line.partition(";")[0] for line in lines] == [
            f"{each} {words}" for each in (model.predictions, model.report)
        ]
        assert main(["lineage", model.evaluation]) == 1
        assert f"PARENT CHANGED: {model.predictions} {words}" in capsys.readouterr().out

    def test_what_was_made_again_to_the_same_bytes_keeps_its_children(self, root: Root, model: Model) -> None:
        before = manifest.load(model.prepared)
        self.make_again(model.prepared, rows=3, seconds=17.0)
        assert manifest.load(model.prepared).digest != before.digest
        assert main(["verify", "--deep", "--storage", root]) == 0


def test_result_below_the_root_is_called_by_shelf_and_name_and_found_from_a_moved_one(root: Root) -> None:
    for shelf in (kind.folder for kind in KINDS.values()):
        uri = root.child(f"{shelf}/model-0123456789ab")
        assert reference.of(uri, root=root) == f"{shelf}/model-0123456789ab"
        assert reference.resolve(reference.of(uri, root=root), root=Root("/moved")) == f"/moved/{shelf}/{uri.name}"
        assert reference.root_of(uri) == root


@pytest.mark.parametrize(
    "uri", ["/other/checkpoints/a-1", "s3://bucket/checkpoints/a-1", "/photos", "s3://checkpoints/x", "/other"]
)
def test_what_lies_elsewhere_keeps_its_uri(root: Root, uri: str) -> None:
    assert reference.of(URI(uri), root=root) == uri
    assert reference.resolve(uri, root=root) == URI(uri)


@pytest.mark.parametrize("name", ["checkpoints", "checkpoints/a/b", "registry/a", "datasets/a", "checkpoints/../a", ""])
def test_what_is_no_reference_is_refused(root: Root, name: str) -> None:
    with pytest.raises(ValueError, match="must not contain|checkpoints/NAME"):
        reference.resolve(name, root=root)


def test_root_behind_a_link_is_the_same_root(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    os.symlink(tmp_path / "real", tmp_path / "link")
    real, link = Root(str(tmp_path / "real")), Root(str(tmp_path / "link"))
    assert reference.of(link.child("checkpoints/a-1"), root=real) == "checkpoints/a-1"
    assert reference.resolve(link.child("checkpoints/a-1"), root=real) == real.child("checkpoints/a-1")
