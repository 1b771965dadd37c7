"""The plan: the same request gives the same URIs, and each URI depends on what decides its bytes and nothing else."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

from storage import files, kinds, manifest, tables
from storage.decision import Decision
from storage.kinds import CheckpointURI
from storage.uri import URI
from tasks.learning import images, recipes
from tasks.learning.recipes import Training
from tasks.learning.variants import group
from tasks.planning import make_plan
from tasks.planning.plan import Plan
from tasks.resources import machine
from tasks.resources.needs import Limits
from tasks.stages import Download, Embed, Ingest, Predict, Preprocess, Train
from tests import committed

STAGES = ["raw", "prepared", "checkpoint", "predictions", "evaluation"]

SETTINGS = {
    "metric=macro-f1": None,
    "metric=accuracy": None,
    "minimum=0.5": None,
    "tolerance=0.5": None,
    "max_p_value=0.05": None,
    "classes_may_go=true": None,
    "image_size=32": None,  # this and the next two are for images of one's own: tests/images/test_user_images.py
    "channels=1": None,
    "test_fraction=0.3": None,
    "max_megapixels=32": None,
    "source=mnist-sample": "raw",
    "seed=1": "checkpoint",
    "split_seed=1": "prepared",
    "validation_fraction=0.2": "prepared",
    "max_quarantined=0.2": "prepared",
    "epochs=5": "checkpoint",
    "batch_size=32": "checkpoint",
    "learning_rate=0.5": "checkpoint",
    "weight_decay=0.5": "checkpoint",
    "warmup_fraction=0.5": "checkpoint",
    "schedule=warmup-constant-decay": "checkpoint",
    "schedule=warmup-constant-decay decay_fraction=0.5": "checkpoint",
    "label_smoothing=0.5": "checkpoint",
    "max_shift=1": "checkpoint",
    "flip=horizontal": "checkpoint",
    "optimizer=sgd": "checkpoint",
    "optimizer=sgd momentum=0.8": "checkpoint",
    "model=timm/resnet18 start=pretrained": "checkpoint",
    "model=timm/resnet18 start=pretrained freeze_epochs=1": "checkpoint",
    "model=timm/resnet18 start=pretrained ensemble=probe": "checkpoint",
    "backbone_lr_scale=0.5": "checkpoint",
    "model=resnet18-3x3": "checkpoint",
    "precision=fp32": "checkpoint",
    "loader=streaming": "checkpoint",
    "loader=ray-data": "checkpoint",
    "micro_batches=2": "checkpoint",
    "validation_batch_size=64": "checkpoint",
    "class_weights=balanced": "checkpoint",
    "class_weights=none": "checkpoint",
    "early_stop=2": "checkpoint",
    "policy=trivial": "checkpoint",
    "erasing=0.5": "checkpoint",
    "mixup=0.2": "checkpoint",
    "cutmix=1": "checkpoint",
    "compile=on": "checkpoint",
    "device=cpu": None,
    "device=cuda step=graph": None,
    "accelerator_type=A100": None,
    "cpus_per_worker=0.5": None,
}
"""The first stage whose bytes each setting decides, none when it decides none; before it, what it needs."""


def make(storage: Path, *settings: str, **changes: Any) -> Plan:
    """The plan of a run of the default recipe with `settings`."""
    recipe = recipes.override(recipes.load("mnist-resnet18"), settings)
    return make_plan.make_plan(storage=str(storage), recipe=recipe, **changes)


def uris(made: Plan) -> dict[str, URI]:
    """The URI of each stage."""
    stages = (made.preprocess, made.train, made.predict, made.evaluate)
    return dict(zip(STAGES, [made.preprocess.raw, *(stage.target for stage in stages)], strict=True))


def changed(made: Plan, other: Plan) -> list[str]:
    """Stages whose URIs differ."""
    return [stage for stage in STAGES if uris(made)[stage] != uris(other)[stage]]


def commit(uri: URI, *parents: URI) -> None:
    """As if the work were done."""
    kind = next(kind for kind in kinds.KINDS.values() if f"/{kind.folder}/" in uri)
    committed.commit(uri, kind.name, parents=dict(zip(kind.parents, parents, strict=False)))


class TestURIs:
    @pytest.mark.parametrize(("setting", "first"), SETTINGS.items(), ids=SETTINGS)
    def test_setting_changes_the_stages_from_the_first_that_it_decides(
        self, tmp_path: Path, setting: str, first: str | None
    ) -> None:
        expected = STAGES[STAGES.index(first) :] if first else []
        *before, last = setting.split()
        assert changed(make(tmp_path, *before), make(tmp_path, *before, last)) == expected

    def test_every_field_of_a_recipe_is_tried(self) -> None:
        tried = {setting.split()[-1].partition("=")[0] for setting in SETTINGS}
        for_files = {"store", "crop_scale", "color_jitter", "group", "training"}  # tests/images/test_user_images.py
        assert set(recipes.names()) - tried == for_files

    @pytest.mark.parametrize(
        ("model", "name"),
        [("resnet18", "mnist-resnet18"), ("small-cnn", "mnist-small-cnn"), ("timm/resnet18", "mnist-timm-resnet18")],
    )
    def test_results_are_named_after_the_model_that_they_have(self, tmp_path: Path, model: str, name: str) -> None:
        plan = make(tmp_path, f"model={model}")
        names = {uri.name.rpartition("-")[0] for uri in (plan.train.target, plan.predict.target, plan.evaluate.target)}
        assert names == {plan.recipe.name} == {name}

    def test_number_of_workers_changes_everything_from_the_checkpoint_on(self, tmp_path: Path) -> None:
        assert changed(make(tmp_path), make(tmp_path, workers=2)) == STAGES[2:]
        assert changed(make(tmp_path), make(tmp_path, workers=0)) == STAGES[2:]
        assert changed(make(tmp_path), make(tmp_path, limits=Limits(stage_s=60))) == []

    def test_recipes_of_the_same_data_share_its_preparation_whatever_their_names(self, tmp_path: Path) -> None:
        one, other = (
            make_plan.make_plan(storage=str(tmp_path), recipe=recipes.load(name))
            for name in ("cifar10-resnet18", "cifar10-vit")
        )
        assert one.train.prepared == other.train.prepared and one.train.prepared.stem == "cifar10"
        assert one.train.target != other.train.target

    @pytest.mark.parametrize("kind", kinds.KINDS)
    def test_new_version_of_a_stage_changes_it_and_all_after_it(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
    ) -> None:
        before = uris(make(tmp_path))
        monkeypatch.setitem(vars(kinds.KINDS[kind]), "version", 99)
        after = uris(make(tmp_path))
        first = STAGES.index(kind) if kind in STAGES else 0 if kind == "files" else len(STAGES)
        assert [name for name in STAGES if before[name] != after[name]] == STAGES[first:]

    def test_field_that_is_added_later_changes_no_uri_with_its_default(self, tmp_path: Path) -> None:
        @group
        class LaterTraining(Training):
            added: int = 0
            """A field of a later version."""

        class LaterTrain(Train):
            also_added: str = "as before"

        def later(**fields: Any) -> Train:
            training = LaterTraining(**vars(recipe.training), **fields)
            return LaterTrain(prepared=plan.train.prepared, recipe=dataclasses.replace(recipe, training=training))

        plan = make(tmp_path, "learning_rate=0.5", "optimizer=sgd")
        recipe = plan.recipe
        assert later().target == plan.train.target != later(added=1).target

    def test_plan_has_the_size_of_a_request_and_is_read_back_from_its_json(self, tmp_path: Path) -> None:
        folder = tmp_path / "photos"
        for number in range(300):
            (folder / f"{number % 2}").mkdir(parents=True, exist_ok=True)
            (folder / f"{number % 2}/{number}.png").write_bytes(f"{number}".encode())
        plan = make_plan.make_plan(
            storage=str(tmp_path / "root"), recipe=recipes.load("images-resnet18"), data=str(folder)
        )
        printed = plan.model_dump_json()
        assert len(printed) < 5000
        assert Plan.model_validate_json(printed) == plan and json.loads(printed)["train"]["prepared"]


class TestFiles:
    def test_files_have_their_name_from_the_data_set_and_its_checksums_alone(self, tmp_path: Path) -> None:
        def files(*settings: str, **changes: Any) -> URI:
            download = make(tmp_path, *settings, **changes).download
            assert download
            return download.target

        assert files().stem == "mnist"
        assert files("epochs=5", "seed=1", "model=resnet18-3x3", workers=2, mirror=[str(tmp_path)]) == files()
        assert files("source=mnist-sample") != files() != files(refresh=True)


class TestRefresh:
    def test_refresh_changes_every_uri(self, tmp_path: Path) -> None:
        assert changed(make(tmp_path), make(tmp_path, refresh=True)) == STAGES

    @pytest.mark.parametrize("registered_model", [None, "other"])
    def test_refresh_is_gone_on_with_until_its_decision(self, tmp_path: Path, registered_model: str | None) -> None:
        first = make(tmp_path, refresh=True)
        for uri in (first.train.target, first.evaluate.target):
            commit(uri)
            assert changed(first, make(tmp_path, refresh=True)) == []
        promote(first, first.train.target)
        files.remove(first.evaluate.target)  # as garbage collection does of a previous champion
        assert changed(first, make(tmp_path, refresh=True, registered_model=registered_model)) == STAGES

    def test_refresh_of_a_dataset_that_is_there_does_all_that_is_made_from_it_again(self, tmp_path: Path) -> None:
        first = make(tmp_path, refresh=True, data=raw_dataset(tmp_path))
        assert changed(make(tmp_path, data=raw_dataset(tmp_path)), first) == STAGES[1:]
        promote(first, first.train.target)
        assert changed(first, make(tmp_path, refresh=True, data=raw_dataset(tmp_path))) == STAGES[1:]


def raw_dataset(root: Path) -> str:
    """A committed raw dataset of the default recipe's data set, which lies there already."""
    uri = URI(f"{root}/datasets/raw/mnist-0123456789ab")
    if not manifest.is_committed(uri):
        listed = [manifest.File(path=split, split=split, size=1, rows=1, sha256="") for split in ("train", "test")]
        schema = tables.describe(images.schema((28, 28, 1), ["0", "1"]))
        committed.commit(uri, "raw", listed, schema=schema)
    return uri


def test_ray_is_needed_until_its_stages_and_the_predictions_of_the_champion_are_committed(tmp_path: Path) -> None:
    for stage in ["prepared", "checkpoint", "predictions"]:
        assert make(tmp_path).needs_ray
        commit(uris(make(tmp_path))[stage], *filter(manifest.is_committed, uris(make(tmp_path)).values()))
    made = make(tmp_path)
    assert not made.needs_ray and not manifest.is_committed(made.preprocess.raw), "one shard is ingested without Ray"
    champion = make(tmp_path, "epochs=5").train.target
    promote(made, champion)
    made = make(tmp_path)
    assert made.needs_ray and made.rival == champion and champion in made.uses
    target = Predict(root=made.root, checkpoint=champion, dataset=made.train.prepared, split="test").target
    assert target in made.uses
    commit(target, made.train.prepared)
    assert not make(tmp_path).needs_ray


def promote(made: Plan, champion: CheckpointURI) -> Decision:
    return committed.promote(made.root, made.registered_model, champion, evaluation=made.evaluate.target)


def test_a_part_of_the_cores_gives_another_checkpoint_of_the_same_data(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = make(tmp_path)
    request.addfinalizer(lambda: machine.choose(None))
    machine.choose(1)
    part = make(tmp_path)
    assert part.train.prepared == whole.train.prepared
    assert part.train.target != whole.train.target, "sums over one thread are not those over two"
    assert part.train.values == whole.train.values | {"cores": 1}


def test_a_default_changes_only_with_the_version_of_the_stages_whose_names_leave_it_out() -> None:
    # Otherwise a run would find a result of the old default under its name. Increase `version` in storage/kinds.py,
    # then take the new values into defaults.json; a new field only needs its line there.
    schemas = [stage.model_json_schema() for stage in (Download, Ingest, Preprocess, Embed, Train, Predict)]
    tables = [schema for outer in schemas for schema in (outer, *outer.get("$defs", {}).values())]
    defaults = {
        f"{schema['title']}.{name}": field["default"]
        for schema in tables
        if schema["title"] not in ("Recipe", "Gate", "Resources")
        for name, field in schema.get("properties", {}).items()
        if "default" in field and name not in ("kind", "root")
    }
    versions = {kind.name: kind.version for kind in kinds.KINDS.values()}
    expected = json.loads(Path(__file__).with_name("defaults.json").read_text())
    assert {"versions": versions, "defaults": defaults} == expected
