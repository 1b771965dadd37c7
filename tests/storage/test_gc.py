"""Garbage collection deletes garbage and keeps everything that may still be needed."""

import contextlib
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from storage import champions, files, in_use, lease, manifest
from storage import s3 as s3_requests
from storage.admin.gc import Garbage
from storage.manifest import Damaged
from storage.uri import URI, Root
from tests.runs import await_that
from tests.s3 import Server
from tests.storage import results
from tests.storage.results import DATA

DAY_S = 24 * 3600
LONG_S = 3600.0


def look(root: Root, *, days_later: float = 40, leased: Collection[URI] = (), keep_days: int = 30) -> Garbage:
    """The garbage as somebody sees it who comes `days_later`, while `leased` are worked on."""
    for uri in leased:
        lease.take(root, uri, owner="a job", ttl_s=LONG_S)
    return Garbage(root, keep_days=keep_days, now=time.time() + days_later * DAY_S)


def collect(found: Garbage) -> set[URI]:
    """Remove all that may go, and return what went."""
    return {removal.uri for batch in found.plan() for removal in found.remove(batch)}


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
    def test_old_results_that_nobody_needs_go(self, root: Root) -> None:
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
        downloads = {name: results.commit(root, "files", name) for name in ("champion", "other")}
        models = {
            name: results.run(root, name, raw=results.commit(root, "raw", name, files=uri))
            for name, uri in downloads.items()
        }
        results.decide(root, models["champion"])
        found = look(root)
        order = [removal.uri for batch in found.plan() for removal in batch.removals]
        assert order[-1] == downloads["other"], "what was made from them goes first"
        assert collect(found) == models["other"].all() | {downloads["other"]}
        assert rest(root, [downloads["champion"]]) == {downloads["champion"]}

    def test_every_data_set_keeps_its_champion(self, root: Root) -> None:
        for data in ("digits", "letters"):
            results.decide(root, results.run(root, data), data=data)
        assert collect(look(root)) == set()

    def test_predictions_of_the_champion_keep_the_dataset_that_they_are_of(self, root: Root) -> None:
        champion, other = results.run(root, "champion"), results.run(root, "other")
        results.decide(root, champion)
        batch = results.commit(root, "predictions", "b", checkpoint=champion.checkpoint, dataset=other.prepared)
        collect(look(root))
        assert rest(root, other.all() | {batch}) == {batch, other.prepared, other.raw}

    def test_champion_that_was_promoted_through_another_path_to_the_same_root_stays(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        real, link = Root(f"{tmp_path}/real"), Root(f"{tmp_path}/link")
        champion = results.run(link, "champion")
        results.decide(link, champion)
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

    def test_leased_result_stays_with_its_strays_and_all_that_it_was_made_from(self, root: Root) -> None:
        model = results.run(root, "model")
        files.put(model.checkpoint.child("stray"), b"")
        gone = collect(look(root, leased=[model.checkpoint]))
        assert gone == model.all() - model.lineage()
        assert files.exists(model.checkpoint.child("stray"))

    def test_registry_and_what_is_not_ours_stay(self, root: Root) -> None:
        results.decide(root, results.run(root, "champion"))
        for name in ("notes.txt", "registry/digits/.tmp-x", "mine/file", "checkpoints/mine/file", "datasets/raw/file"):
            files.put(root.child(name), b"")
        before = results.listing(root)
        assert collect(look(root, days_later=400)) == set()
        assert results.listing(root) == before


class TestLeftovers:
    """Here everything is committed today, and nothing committed goes."""

    def test_folder_without_a_manifest_goes_when_nothing_changed_in_it_for_a_day(self, root: Root) -> None:
        uri = results.place(root, "predictions", "dead")
        results.write_part(uri)
        assert collect(look(root, days_later=0.9)) == set()
        assert collect(look(root, days_later=1.1)) == {uri}
        assert files.walk(uri) == []

    def test_folder_that_lost_its_manifest_stays_while_something_was_made_from_it(self, root: Root) -> None:
        model = results.run(root, "model")
        results.decide(root, model)
        files.remove(model.raw.child(manifest.NAME))
        assert collect(look(root)) == set()

    def test_file_that_the_manifest_does_not_list_goes_after_a_day(self, root: Root) -> None:
        model = results.run(root, "model")
        stray = results.write_part(model.raw, rows=5)
        assert collect(look(root, days_later=0.9)) == set()
        assert collect(look(root, days_later=1.1)) == {model.raw.child(stray.path)}
        assert rest(root, model.all()) == model.all()

    def test_half_written_files_go_after_a_day(self, root: Root) -> None:
        model = results.run(root, "model")
        places = [model.raw, model.raw.child("train"), root.child("leases/x"), root.child("runs/mine-0123456789ab")]
        for place in places:
            files.put(place.child(".tmp-a1"), b"")
        files.put(root.child("runs/mine-0123456789ab/train.json"), b"{}")
        assert collect(look(root, days_later=0.9)) == set()
        assert collect(look(root, days_later=1.1)) == {place.child(".tmp-a1") for place in places}

    def test_half_written_folder_goes_as_a_whole_when_its_newest_file_is_old(self, root: Root) -> None:
        folder = root.child("runs/mine-0123456789ab/.tmp-download-x")
        files.put(folder.child("a/.tmp-b/c"), b"")
        files.put(folder.child("d"), b"")
        results.set_age(folder.child("a"), days=2)
        assert collect(look(root, days_later=0)) == set()
        results.set_age(folder, days=2)
        assert collect(look(root, days_later=0)) == {folder}


class TestScratch:
    def test_scratch_of_what_is_committed_goes(self, root: Root) -> None:
        model = results.run(root, "model")
        scratch = results.write_scratch(root, model.checkpoint)
        assert collect(look(root, days_later=0)) == {scratch}
        assert rest(root, model.all()) == model.all()

    @pytest.mark.parametrize(("days", "keep_days", "goes"), [(29, 30, False), (31, 30, True), (0.9, 0, False)])
    def test_scratch_of_what_is_not_committed_goes_when_it_is_old(
        self, root: Root, days: float, keep_days: int, goes: bool
    ) -> None:
        scratch = results.write_scratch(root, results.place(root, "checkpoint", "dead"))
        assert collect(look(root, days_later=days, keep_days=keep_days)) == ({scratch} if goes else set())

    def test_scratch_stays_while_a_run_uses_its_target(self, root: Root) -> None:
        target = results.place(root, "checkpoint", "slow")
        results.write_scratch(root, target)
        with in_use.using(root, [target], owner="a run"):
            assert collect(look(root)) == set()

    def test_scratch_stays_while_its_committed_target_is_leased(self, root: Root) -> None:
        target = results.run(root, "model").checkpoint
        scratch = results.write_scratch(root, target)
        assert scratch not in collect(look(root, leased=[target]))

    def test_scratch_of_what_is_leased_keeps_what_its_attempts_read(self, root: Root) -> None:
        read, other = results.run(root, "read"), results.run(root, "other")
        target = results.place(root, "checkpoint", "slow")
        results.write_scratch(root, target)
        lease.take(root, target, owner="train-0123456789ab-1", ttl_s=LONG_S, uses=[read.prepared])
        collect(look(root))
        assert rest(root, read.all() | other.all()) == {read.prepared, read.raw}

    def test_young_scratch_keeps_what_its_attempts_read(self, root: Root) -> None:
        model = results.run(root, "model")
        for uri in model.all():
            results.set_age(uri, days=40)
        results.write_scratch(root, results.place(root, "checkpoint", "slow"), uses=[model.prepared])
        collect(look(root, days_later=0))
        assert rest(root, model.all()) == {model.prepared, model.raw}


class TestWhatCannotBeKnown:
    @pytest.mark.parametrize(
        ("place", "content"),
        [
            ("{prepared}/_manifest.json", b"garbage"),
            ("{checkpoint}/_manifest.json", None),
            ("{root}/registry/digits/000001.json", None),
            ("{root}/leases/_run-1/000001.json", b"garbage"),
        ],
        ids=["manifest garbled", "champion's manifest lost", "decision lost", "lease garbled"],
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
            collect(look(root))
        assert results.listing(root) == before


class TestMeanwhile:
    """Between plan and removal, a planned result becomes needed."""

    @pytest.fixture
    def model(self, root: Root) -> results.Model:
        """A run of long ago that nobody needs."""
        model = results.run(root, "model")
        for uri in model.all():
            results.set_age(uri, days=40)
        return model

    @pytest.fixture
    def found(self, root: Root, model: results.Model) -> Garbage:
        """What may go, as of before."""
        return look(root, days_later=0)

    def remove(self, found: Garbage, meanwhile: Callable[[], object]) -> None:
        """Plan, let `meanwhile` happen, remove."""
        batches = found.plan()
        meanwhile()
        for batch in batches:
            found.remove(batch)

    def test_it_is_promoted(self, root: Root, model: results.Model, found: Garbage) -> None:
        results.decide(root, results.run(root, "champion"))
        self.remove(found, lambda: champions.promote(root, model.checkpoint))
        assert rest(root, model.all()) == model.all()

    def test_a_run_begins_to_use_it(self, root: Root, model: results.Model) -> None:
        found = Garbage(root, keep_days=30)
        with in_use.using(root, [], owner="a run") as run:
            self.remove(found, lambda: run.add([model.predictions]))
        assert rest(root, model.all()) == model.lineage() | {model.predictions}

    def test_a_run_begins_to_use_it_while_the_collector_is_suspended(self, root: Root, model: results.Model) -> None:
        found = Garbage(root, keep_days=30)
        batches = found.plan()
        assert batches
        held = lease.take(root, root.child("collector"), owner="gc", ttl_s=0.2)
        await_that(held.has_lapsed, limit_s=20)
        assert [found.remove(batch, has_lapsed=held.has_lapsed) for batch in batches] == [[]] * len(batches)
        assert rest(root, model.all()) == model.all()

    def test_something_new_was_made_from_it(self, root: Root, model: results.Model, found: Garbage) -> None:
        new: list[URI] = []
        self.remove(found, lambda: new.append(results.commit(root, "prepared", "new", raw=model.raw)))
        assert rest(root, {*model.all(), *new}) == {model.raw, *new}

    def test_it_is_leased_as_it_loses_its_manifest(
        self, root: Root, model: results.Model, found: Garbage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rename = os.rename

        def rename_and_lease(before: str, after: str) -> None:
            rename(before, after)
            monkeypatch.undo()
            lease.take(root, model.raw, owner="a job", ttl_s=LONG_S)

        monkeypatch.setattr(os, "rename", rename_and_lease)
        batch = next(batch for batch in found.plan() if batch.folder.uri == model.raw)
        assert found.remove(batch) == []
        assert rest(root, [model.raw]) == {model.raw}

    def test_it_is_made_again_while_the_collector_is_stopped_in_its_files(
        self, root: Root, model: results.Model, found: Garbage, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        rmtree = shutil.rmtree

        def rmtree_late(place: str) -> None:
            os.unlink(next(Path(place).rglob("part-*")))
            results.run(root, "model")
            rmtree(place)

        monkeypatch.setattr(shutil, "rmtree", rmtree_late)
        self.remove(found, lambda: None)
        monkeypatch.undo()
        assert rest(root, model.all()) == model.all()

    def test_an_attempt_writes_on_into_its_folder(self, root: Root, found: Garbage) -> None:
        uri = results.place(root, "predictions", "dead")
        results.write_part(uri)
        results.set_age(uri, days=2)
        self.remove(look(root, days_later=0), lambda: results.write_part(uri, index=1))
        assert len(files.walk(uri)) == 2

    def test_inputs_of_an_attempt_begun_after_its_scratch_was_deleted_stay(
        self, root: Root, model: results.Model
    ) -> None:
        target = results.place(root, "checkpoint", "dead")
        scratch = results.write_scratch(root, target, uses=[model.raw])
        results.set_age(scratch, days=40)
        found = look(root, days_later=0)
        for batch in found.plan():
            found.remove(batch)
            if batch.folder.uri == scratch:
                results.write_scratch(root, target, uses=[model.prepared])
        assert rest(root, model.all()) == {model.prepared, model.raw}

    def test_an_attempt_goes_on_in_old_scratch(self, root: Root, model: results.Model) -> None:
        target = results.place(root, "checkpoint", "dead")
        scratch = results.write_scratch(root, target, uses=[model.prepared])
        results.set_age(scratch, days=40)
        uses = [model.prepared]
        self.remove(look(root, days_later=0), lambda: lease.take(root, target, owner="a job", ttl_s=LONG_S, uses=uses))
        assert len(files.walk(scratch)) == 2
        assert rest(root, model.all()) == {model.prepared, model.raw}

    def test_somebody_else_removes_it(self, root: Root, model: results.Model, found: Garbage) -> None:
        self.remove(found, lambda: files.remove(model.raw))
        assert rest(root, model.all()) == set()


class TestOnS3:
    @pytest.fixture
    def root(self, s3: Server) -> Root:
        return Root(f"s3://{s3.bucket}/{uuid.uuid4().hex}")

    def test_old_results_and_scratch_go_and_the_champion_and_what_is_leased_stay(self, root: Root) -> None:
        champion, other, leased = (results.run(root, name) for name in ("champion", "other", "leased"))
        results.decide(root, champion)
        scratch = results.write_scratch(root, other.checkpoint)
        kept = champion.all() | leased.lineage()
        gone = other.all() | (leased.all() - leased.lineage())
        assert collect(look(root, leased=[leased.checkpoint])) == gone | {scratch}
        assert rest(root, kept | gone) == kept

    def test_key_named_like_a_folder_does_not_delete_that_folder(self, root: Root, s3: Server) -> None:
        model = results.run(root, "model")
        s3.client().put_object(Bucket=s3.bucket, Key=model.raw.child("train").removeprefix(f"s3://{s3.bucket}/"))
        collect(look(root, days_later=2))
        assert rest(root, model.all()) == model.all()

    def test_no_request_is_tried_again_once_the_lease_has_lapsed(
        self, root: Root, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, tries = results.run(root, "model"), list[str]()
        call = s3_requests._call

        def fail(verb: str, uri: str, **arguments: Any) -> object:
            if verb != "delete_objects":
                return call(verb, uri, **arguments)
            tries.append(verb)
            raise ConnectionError("503")

        monkeypatch.setattr(s3_requests, "_call", fail)
        batches = look(root).plan()
        assert batches
        assert [look(root).remove(batch, has_lapsed=lambda: bool(tries)) for batch in batches] == [[]] * len(batches)
        assert len(tries) == 1 and rest(root, model.all()) == model.all()

    def test_file_that_was_written_after_the_listing_stays(self, root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
        model, written = results.run(root, "model"), list[manifest.File]()

        def holder(root: Root, uri: URI) -> None:
            if uri == model.raw and not files.exists(uri.child(manifest.NAME)):
                written.append(results.write_part(uri, index=7))

        monkeypatch.setattr(lease, "holder", holder)
        collect(look(root))
        assert [entry.path for entry in files.walk(model.raw)] == [written[0].path]


def test_cut_off_at_some_moment_nothing_readable_is_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remove, left = files.remove, 0

    class Killed(Exception):
        pass

    def remove_some(uri: URI) -> None:
        nonlocal left
        for place in [uri.child(entry.path) for entry in files.walk(uri)] or [uri]:
            if left == 0:
                raise Killed
            left -= 1
            remove(place)

    root, untouched = Root(f"{tmp_path}/root"), tmp_path / "untouched"
    model, champion = results.run(root, "model"), results.run(root, "champion")
    results.decide(root, champion)
    shutil.move(root, untouched)
    for moment in range(0, 100, 3):
        shutil.rmtree(root, ignore_errors=True)
        shutil.copytree(untouched, root)
        left = moment
        monkeypatch.setattr(files, "remove", remove_some)
        with contextlib.suppress(Killed):
            collect(look(root))
        monkeypatch.undo()
        readable = {uri for uri in model.all() | champion.all() if manifest.find(uri)}
        assert readable >= champion.all()
        for uri in readable:
            made = manifest.load(uri)
            assert {made.parent(role, of=uri) for role in made.parents} <= readable
        if left:
            break
        collect(look(root))
        assert rest(root, model.all() | champion.all()) == champion.all()
    else:
        pytest.fail("it never came to its end")
