"""Garbage collection deletes garbage and keeps everything that may still be needed."""

import contextlib
import os
import time
import uuid
from collections.abc import Collection
from pathlib import Path

import pytest

from storage import champions, files, manifest, uses
from storage.admin.gc import Garbage
from storage.manifest import Damaged
from storage.uri import URI, Root
from tests.s3 import Server
from tests.storage import results
from tests.storage.results import DATA

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


class TestCommittedResults:
    def test_old_results_that_are_not_needed_are_deleted(self, root: Root) -> None:
        model = results.run(root, "old")
        assert collect(look(root, days_later=29)) == set()
        assert collect(look(root)) == model.all()
        assert files.walk(root) == []

    def test_champion_stays_with_all_that_was_made_with_it_and_all_that_it_was_made_from(self, root: Root) -> None:
        champion, other = results.run(root, "champion"), results.run(root, "other")
        exports = [
            results.commit(root, "export", model.checkpoint.name, checkpoint=model.checkpoint, prepared=model.prepared)
            for model in (champion, other)
        ]
        results.decide(root, champion, challenger=other)
        assert collect(look(root)) == other.all() | {exports[1]}
        assert rest(root, champion.all() | {exports[0]}) == champion.all() | {exports[0]}

    def test_previous_champion_stays_with_its_lineage(self, root: Root) -> None:
        first, second, third = (results.run(root, name) for name in ("first", "second", "third"))
        for model in (first, second, third):
            results.decide(root, model)
        collect(look(root))
        assert rest(root, first.all() | second.all() | third.all()) == second.lineage() | third.all()
        champions.rollback(root, DATA)
        assert collect(look(root)) >= third.all()
        assert rest(root, second.lineage()) == second.lineage()

    def test_files_stay_as_long_as_what_was_made_from_them_is_needed(self, root: Root) -> None:
        files_of = {name: results.commit(root, "files", name) for name in ("champion", "other")}
        raw_of = {name: results.commit(root, "raw", name, files=uri) for name, uri in files_of.items()}
        models = {name: results.run(root, name, raw=raw) for name, raw in raw_of.items()}
        results.decide(root, models["champion"])
        garbage = look(root)
        assert garbage.find()[-1].uri == files_of["other"], "what was made from them goes first"
        assert collect(garbage) == models["other"].all() | {files_of["other"]}
        assert rest(root, [files_of["champion"]]) == {files_of["champion"]}

    def test_every_data_set_keeps_its_champion_also_one_promoted_through_a_link(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        real, link = Root(f"{tmp_path}/real"), Root(f"{tmp_path}/link")
        for data, root in (("digits", real), ("letters", link)):
            results.decide(root, results.run(root, data), data=data)
        assert collect(look(real)) == set()

    def test_lineage_is_followed_out_of_the_root_and_back(self, root: Root) -> None:
        inner, outer = Root(root.child("inner")), Root(root.child("outer"))
        raw = results.commit(inner, "raw", "raw")
        champion = results.run(inner, "champion", raw=results.commit(outer, "prepared", "between", raw=raw))
        results.decide(inner, champion)
        assert collect(look(inner)) == set()

    def test_what_stays_keeps_what_it_was_made_from(self, root: Root) -> None:
        model = results.run(root, "model")
        for uri in model.all() - {model.predictions}:
            results.set_age(uri, days=40)
        assert collect(look(root, days_later=0)) == {model.evaluation, model.report}
        assert rest(root, model.all()) == model.lineage() | {model.predictions}

    def test_what_a_run_of_the_last_week_names_stays_with_all_that_it_was_made_from(self, root: Root) -> None:
        model = results.run(root, "model")
        for uri in model.all():
            results.set_age(uri, days=40)
        use(root, model.checkpoint)
        assert collect(look(root, days_later=6)) == model.all() - model.lineage()
        marker = root.child(f"{uses.FOLDER}/a.json")
        assert collect(look(root, days_later=8)) == model.lineage() | {marker}

    def test_registry_and_foreign_files_stay(self, root: Root) -> None:
        results.decide(root, results.run(root, "champion"))
        for name in ("notes.txt", "registry/digits/.tmp-x", "mine/file", "checkpoints/mine/file", "datasets/raw/file"):
            files.put(root.child(name), b"")
        before = results.listing(root)
        assert collect(look(root, days_later=400)) == set()
        assert results.listing(root) == before


class TestLeftovers:
    """Nothing committed goes, and leftovers go once they are as old as results that go."""

    def test_folder_without_a_manifest_goes_unless_something_was_made_from_it(self, root: Root) -> None:
        model = results.run(root, "model")
        results.decide(root, model)
        files.remove(model.raw.child(manifest.NAME))
        uri = results.place(root, "predictions", "dead")
        results.write_part(uri)
        assert collect(look(root, days_later=29)) == set()
        assert collect(look(root, days_later=31)) == {uri}
        assert files.walk(uri) == [] and files.walk(model.raw)

    def test_file_that_the_manifest_does_not_list_goes(self, root: Root) -> None:
        model = results.run(root, "model")
        results.decide(root, model)
        stray = results.write_part(model.raw, rows=5)
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
        model = results.run(root, "model")
        results.decide(root, model)
        target = model.checkpoint if is_committed else results.place(root, "checkpoint", "dead")
        scratch = results.write_scratch(root, target)
        assert collect(look(root, days_later=29)) == set()
        results.set_age(scratch, days=40)
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
        champion = results.run(root, "champion")
        results.decide(root, champion)
        results.decide(root, champion, challenger=results.run(root, "other"))
        spoiled = URI(place.format(root=root, **vars(champion)))
        files.remove(spoiled) if content is None else files.put(spoiled, content)
        before = results.listing(root)
        with pytest.raises(Damaged):
            collect(look(root, days_later=6, keep_days=1))
        assert results.listing(root) == before


def test_the_same_on_s3(s3: Server) -> None:
    root = Root(f"s3://{s3.bucket}/{uuid.uuid4().hex}")
    champion, other, used = (results.run(root, name) for name in ("champion", "other", "used"))
    results.decide(root, champion)
    scratch = results.write_scratch(root, other.checkpoint)
    use(root, used.checkpoint)
    key = champion.raw.child("train").removeprefix(f"s3://{s3.bucket}/")
    s3.client().put_object(Bucket=s3.bucket, Key=key)  # named like a folder: both stay
    kept = champion.all() | used.lineage()
    gone = other.all() | (used.all() - used.lineage())
    assert collect(look(root, days_later=6, keep_days=1)) == gone | {scratch}
    assert rest(root, kept | gone) == kept


def test_cut_off_at_any_moment_nothing_readable_is_damaged(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    model, champion = results.run(root, "model"), results.run(root, "champion")
    results.decide(root, champion)
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
