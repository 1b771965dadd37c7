"""A result names what it was made from and which bytes that had: it is found wherever its root lies, never mistaken.

Roots are moved and reached through links, on a disk and on S3.
"""

import json

import pytest

from storage import champions, commits, files, manifest, registry
from storage.__main__ import main
from storage.admin import catalog, lineage, verify
from storage.admin.gc import Garbage
from storage.kinds import KINDS
from storage.uri import URI, Root
from tests.storage import results
from tests.storage.results import DATA, Model


def moved(root: Root, place: Root) -> Root:
    """All of `root` at `place`, and no longer at `root`."""
    for path, content in results.listing(root).items():
        files.put(place.child(path), content)
    files.remove(root)
    return place


def there(uri: URI, *, was: Root, now: Root) -> URI:
    """Where `uri` lies once its root was moved."""
    return now.child(uri.removeprefix(f"{was}/"))


class TestMoved:
    """What holds of a root once it lies elsewhere."""

    @pytest.fixture
    def story(self, root: Root) -> tuple[Root, Model, Model]:
        """A root where the second model took charge after the first, and was rolled back; then it was moved."""
        before, now = Root(root.child("before")), Root(root.child("now"))
        first, second = results.run(before, "first"), results.run(before, "second")
        for model in (first, second):
            results.decide(before, model)
        champions.rollback(before, DATA)
        moved(before, now)
        models = [
            Model(**{name: type(uri)(there(uri, was=before, now=now)) for name, uri in vars(model).items()})
            for model in (first, second)
        ]
        return now, models[0], models[1]

    def test_champion_and_what_was_rolled_back_are_those_of_the_new_place(
        self, story: tuple[Root, Model, Model]
    ) -> None:
        root, first, second = story
        assert registry.champion(root, DATA) == first.checkpoint
        assert registry.withdrawn(registry.history(root, DATA)) == {second.checkpoint}
        assert champions.promote(root, second.checkpoint) == DATA
        assert champions.rollback(root, DATA).champion == first.checkpoint

    def test_lineage_goes_back_to_the_raw_files(self, story: tuple[Root, Model, Model]) -> None:
        root, _, second = story
        tree = lineage.of(second.report, "report")
        assert tree.is_sound
        assert {word for line in tree.lines for word in line.split() if word.startswith(root)} == second.all()

    def test_everything_verifies(self, story: tuple[Root, Model, Model]) -> None:
        root, *_ = story
        folders = catalog.read_folders(catalog.list_folders(root, KINDS))
        assert len(folders) == 12
        assert [line for folder in folders for line in verify.of_folder(folder, deep=True)] == []
        assert list(verify.of_registry(root)) == []
        assert main(["ls", "--storage", root]) == main(["verify", "--deep", "--storage", root]) == 0

    def test_garbage_collection_keeps_what_the_champion_needs(self, story: tuple[Root, Model, Model]) -> None:
        root, first, second = story
        garbage = Garbage(root, keep_days=0)
        gone = {removal.uri for batch in garbage.plan() for removal in garbage.remove(batch)}
        assert gone == second.all()
        assert manifest.find(first.raw) and lineage.of(first.report, "report").is_sound


def test_parent_below_another_root_keeps_its_uri_and_has_its_digest(root: Root) -> None:
    raw = results.commit(Root(root.child("other")), "raw", "model")
    prepared = results.commit(Root(root.child("own")), "prepared", "model", raw=raw)
    made = manifest.load(prepared)
    said = json.loads(files.read(prepared.child(manifest.NAME)))["parents"]["raw"]
    assert (said["uri"], said["digest"]) == (raw, manifest.load(raw).digest)
    assert made.parent("raw", of=prepared) == raw


def test_uncommitted_parent_is_refused(root: Root) -> None:
    with pytest.raises(FileNotFoundError, match="is not committed"):
        results.commit(root, "prepared", "model", raw=results.place(root, "raw", "model"))


class TestOtherBytes:
    @pytest.fixture
    def model(self, root: Root) -> Model:
        return results.run(root, "model")

    def make_again(self, uri: URI, *, rows: int, statistics: dict[str, float]) -> None:
        """What a person does to a damaged result: remove it, and have it made anew."""
        made = manifest.load(uri)
        files.remove(uri)
        listed = [results.write_part(uri, split="train", rows=6), results.write_part(uri, rows=rows)]
        parents = {role: made.parent(role, of=uri) for role in made.parents}
        commits.commit(
            uri, kind=made.kind, parents=parents, parameters=made.parameters, listed=listed, statistics=statistics
        )

    def test_child_of_other_bytes_is_told_with_its_parent(
        self, root: Root, model: Model, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.make_again(model.checkpoint, rows=4, statistics={})
        for child in (model.predictions, model.report):
            assert manifest.changed_parent(child, manifest.load(child)) == model.checkpoint
        assert manifest.changed_parent(model.evaluation, manifest.load(model.evaluation)) is None
        assert main(["verify", "--storage", root]) == 0
        assert main(["verify", "--deep", "--storage", root]) == 1
        told = capsys.readouterr().out.splitlines()[1:-1]
        words = f"was made from other bytes of {model.checkpoint} than exist now"
        assert [line.partition(";")[0] for line in told] == [
            f"{each} {words}" for each in (model.predictions, model.report)
        ]
        assert main(["lineage", model.evaluation]) == 1
        assert f"PARENT CHANGED: {model.predictions} {words}" in capsys.readouterr().out

    def test_what_was_made_again_to_the_same_bytes_keeps_its_children(self, root: Root, model: Model) -> None:
        before = manifest.load(model.prepared)
        self.make_again(model.prepared, rows=3, statistics={"seconds": 17.0})
        assert manifest.load(model.prepared).digest != before.digest
        assert manifest.changed_parent(model.checkpoint, manifest.load(model.checkpoint)) is None
        assert main(["verify", "--deep", "--storage", root]) == 0

    def test_what_was_made_again_on_another_day_keeps_its_children(self, root: Root, model: Model) -> None:
        before = manifest.load(model.prepared)
        self.make_again(model.prepared, rows=3, statistics=before.statistics)
        again = manifest.load(model.prepared)
        assert again.model_copy(update={"created": before.created, "digest": before.digest}) == before
        assert again.created != before.created
        assert manifest.changed_parent(model.checkpoint, manifest.load(model.checkpoint)) is None

    def test_parent_that_is_gone_or_damaged_is_not_compared(self, model: Model) -> None:
        made = manifest.load(model.predictions)
        files.put(model.checkpoint.child(manifest.NAME), b"garbage")
        assert manifest.changed_parent(model.predictions, made) is None
        files.remove(model.checkpoint)
        assert manifest.changed_parent(model.predictions, made) is None
