"""Garbage collection deletes garbage and keeps everything that may still be needed."""

import contextlib
import os
import time
from collections.abc import Collection
from pathlib import Path

import pytest

from storage import champions, files, manifest, uses
from storage.admin.gc import Garbage
from storage.manifest import Damaged
from storage.uri import URI, Root
from tests import committed
from tests.committed import DATA

DAY_S = 24 * 3600


def look(root: Root, *, days_later: float = 40, keep_days: int = 30) -> Garbage:
    """The garbage as somebody sees it who comes `days_later`."""
    return Garbage(root, keep_days=keep_days, now=time.time() + days_later * DAY_S)


def collect(garbage: Garbage) -> set[URI]:
    """Remove all that may go, and return what went."""
    return {removal.uri for removal in garbage.remove(garbage.find())}


def use(root: Root, uri: URI) -> None:
    """Leave the marker of a run that began today and failed."""
    with contextlib.suppress(KeyboardInterrupt), uses.using(root, [uri], run="a"):
        raise KeyboardInterrupt


@pytest.fixture
def root(tmp_path: Path) -> Root:
    """A root on a disk; what S3 does differently is in `TestOnS3`."""
    return Root(f"{tmp_path}/root")


def rest(root: Root, uris: Collection[URI]) -> set[URI]:
    """Those of `uris` that are still whole."""
    kept = {uri for uri in uris if manifest.find(uri)}
    for uri in set(uris) - kept:
        assert files.walk(uri) == []
    return kept


def test_what_is_needed_stays_with_all_that_it_was_made_from_and_everything_else_goes(each_root: Root) -> None:
    root = each_root
    oldest, previous, used = (committed.run(root, name) for name in "abc")
    downloads = {name: committed.result(root, "files", name) for name in "de"}
    champion, other = (
        committed.run(root, name, raw=committed.result(root, "raw", name, files=uri)) for name, uri in downloads.items()
    )
    exports = [
        committed.result(root, "export", model.checkpoint.name, checkpoint=model.checkpoint, prepared=model.prepared)
        for model in (champion, other)
    ]
    for model in (oldest, previous, champion):
        committed.decide(root, model)
    committed.decide(root, champion, challenger=other)
    scratch = committed.write_scratch(root, other.checkpoint)
    use(root, used.checkpoint)
    if root.is_s3:  # a key that is named like a folder stays, and its dataset too
        files.put(champion.raw.child("train"), b"")
    kept = champion.all() | {exports[0], downloads["d"]} | previous.lineage() | used.lineage()
    gone = {exports[1], downloads["e"], scratch}.union(*(run.all() for run in (oldest, previous, other, used))) - kept
    garbage = look(root, days_later=6, keep_days=1)
    order = [removal.uri for removal in garbage.find()]
    assert order.index(other.raw) < order.index(downloads["e"]), "what was made from them goes first"
    assert collect(garbage) == gone
    assert rest(root, kept | gone) == kept
    marker = root.child(f"{uses.FOLDER}/a.json")
    assert collect(look(root, days_later=8, keep_days=1)) == used.lineage() | {marker}
    champions.rollback(root, DATA)
    assert collect(look(root)) >= champion.all()
    assert rest(root, previous.lineage()) == previous.lineage()


class TestCommittedResults:
    def test_old_results_that_are_not_needed_are_deleted(self, root: Root) -> None:
        model = committed.run(root, "old")
        assert collect(look(root, days_later=29)) == set()
        assert collect(look(root)) == model.all()
        assert files.walk(root) == []

    def test_every_data_set_keeps_its_champion_also_one_promoted_through_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        real, link = Root(f"{tmp_path}/real"), Root(f"{tmp_path}/link")
        for data, root in (("digits", real), ("letters", link)):
            committed.decide(root, committed.run(root, data), data=data)
        assert collect(look(real)) == set()

    def test_lineage_is_followed_out_of_the_root_and_back(self, root: Root) -> None:
        inner, outer = Root(root.child("inner")), Root(root.child("outer"))
        raw = committed.result(inner, "raw", "raw")
        champion = committed.run(inner, "champion", raw=committed.result(outer, "prepared", "between", raw=raw))
        committed.decide(inner, champion)
        assert collect(look(inner)) == set()

    def test_what_stays_keeps_what_it_was_made_from(self, root: Root) -> None:
        model = committed.run(root, "model")
        for uri in model.all() - {model.predictions}:
            committed.set_age(uri, days=40)
        assert collect(look(root, days_later=0)) == {model.evaluation, model.report}
        assert rest(root, model.all()) == model.lineage() | {model.predictions}

    def test_registry_and_foreign_files_stay(self, root: Root) -> None:
        committed.decide(root, committed.run(root, "champion"))
        for name in ("notes.txt", "registry/digits/.tmp-x", "mine/file", "checkpoints/mine/file", "datasets/raw/file"):
            files.put(root.child(name), b"")
        before = committed.listing(root)
        assert collect(look(root, days_later=400)) == set()
        assert committed.listing(root) == before


class TestLeftovers:
    """Nothing committed goes, and leftovers go once they are as old as results that go."""

    def test_folder_without_a_manifest_goes_unless_something_was_made_from_it(self, root: Root) -> None:
        model = committed.run(root, "model")
        committed.decide(root, model)
        files.remove(model.raw.child(manifest.NAME))
        uri = committed.place(root, "predictions", "dead")
        committed.write_part(uri)
        assert collect(look(root, days_later=29)) == set()
        assert collect(look(root, days_later=31)) == {uri}
        assert files.walk(uri) == [] and files.walk(model.raw)

    def test_file_that_the_manifest_does_not_list_goes(self, root: Root) -> None:
        model = committed.run(root, "model")
        committed.decide(root, model)
        stray = committed.write_part(model.raw, rows=5)
        strays = {model.raw.child(path) for path in (stray.path, ".tmp-a1", "train/.tmp-a2/file")}
        for uri in strays:
            files.put(uri, b"cut off")
        use(root, model.raw)
        assert collect(look(root, days_later=0.9, keep_days=1)) == set()
        assert collect(look(root, days_later=1.1, keep_days=1)) == strays
        assert rest(root, model.all()) == model.all()

    @pytest.mark.parametrize("is_committed", [True, False])
    def test_files_of_attempts_go_when_they_are_old_and_no_run_names_their_result(
        self, root: Root, is_committed: bool
    ) -> None:
        model = committed.run(root, "model")
        committed.decide(root, model)
        target = model.checkpoint if is_committed else committed.place(root, "checkpoint", "dead")
        scratch = committed.write_scratch(root, target)
        assert collect(look(root, days_later=29)) == set()
        committed.set_age(scratch, days=40)
        use(root, target)
        assert collect(look(root, days_later=0)) == set()
        files.remove(root.child(uses.FOLDER))
        assert collect(look(root, days_later=0)) == {scratch}
        assert rest(root, model.all()) == model.all()


class TestWhatCannotBeKnown:
    @pytest.mark.parametrize(
        ("place", "content"),
        [
            ("{prepared}/_manifest.json", b"garbage"),
            ("{checkpoint}/_manifest.json", None),
            ("{root}/registry/digits/000001.json", None),
            ("{root}/uses/a.json", b"garbage"),
        ],
        ids=["manifest garbled", "champion's manifest lost", "decision lost", "marker garbled"],
    )
    def test_nothing_goes_when_it_cannot_be_known_what_is_needed(
        self, root: Root, place: str, content: bytes | None
    ) -> None:
        champion = committed.run(root, "champion")
        committed.decide(root, champion)
        committed.decide(root, champion, challenger=committed.run(root, "other"))
        spoiled = URI(place.format(root=root, **vars(champion)))
        files.remove(spoiled) if content is None else files.put(spoiled, content)
        before = committed.listing(root)
        with pytest.raises(Damaged):
            collect(look(root, days_later=6, keep_days=1))
        assert committed.listing(root) == before


def test_cut_off_at_any_moment_nothing_readable_is_damaged(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    model, champion = committed.run(root, "model"), committed.run(root, "champion")
    committed.decide(root, champion)
    remove, num_kills = files.remove, 0

    class Killed(Exception):
        pass

    def remove_and_die(uri: URI) -> None:
        existed = os.path.exists(uri)
        remove(uri)
        if existed:
            raise Killed

    monkeypatch.setattr(files, "remove", remove_and_die)
    while files.walk(model.raw):
        with pytest.raises(Killed):
            collect(look(root))
        num_kills += 1
        readable = {uri for uri in model.all() | champion.all() if manifest.find(uri)}
        assert readable >= champion.all()
        for uri in readable:
            recorded = manifest.load(uri)
            assert {recorded.parent(role, of=uri) for role in recorded.parents} <= readable
    assert num_kills == 2 * len(model.all()), "each time with its manifest or the rest of its files"
