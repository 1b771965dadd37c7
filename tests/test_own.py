"""A person's own images: found, named, refused early, and a fingerprint that only the files decide."""

import os
from pathlib import Path

import pytest

from storage import files, manifest, registry
from storage.registry import Decision
from storage.uri import URI, CheckpointURI, Root
from tasks import given, own, plan
from tasks.learning import recipes
from tests.pictures import BROKEN, CLASSES, encoded, write_folder


def found(folder: Path) -> own.Own:
    return own.find(URI(str(folder)))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "Meine Bilder (2026)", train=3, test=2)


def test_every_image_has_its_split_its_class_and_its_checksum(pictures: Path) -> None:
    listed = found(pictures)
    assert (listed.kind, listed.classes, listed.name) == ("images", CLASSES, "meine-bilder-2026")
    assert [sum(file.split == split for file in listed.files) for split in ("train", "test")] == [3 * 3 + 2, 2 * 2 + 1]
    assert set(BROKEN) < {file.path for file in listed.files}
    assert all(file.label is not None and file.path.split("/")[1] == CLASSES[file.label] for file in listed.files)
    assert listed.files[0].digest.startswith("sha256:")


def test_what_is_odd_is_said(pictures: Path) -> None:
    assert found(pictures).notes == (
        f"1 other files below {pictures} are left out",
        "no test image is of class 卵: nothing will be known of it",
    )


def test_a_class_that_is_a_link_is_left_out_and_named(pictures: Path, tmp_path: Path) -> None:
    (pictures / "train" / "pears").rename(tmp_path / "elsewhere")
    (pictures / "train" / "plums").symlink_to(tmp_path / "elsewhere")
    (pictures / "test" / "pears").rename(tmp_path / "test")
    assert "the folder train/plums is a link, which is not followed: it is left out" in found(pictures).notes


def test_only_the_files_decide_the_fingerprint(pictures: Path, tmp_path: Path) -> None:
    def raw() -> str:
        made = plan.make(storage=str(tmp_path / "root"), recipe=recipes.load("images-resnet18"), data=str(pictures))
        return made.raw

    before = raw()
    (pictures / "train" / "notes.txt").write_text("no image")
    os.utime(pictures / BROKEN[0], (1, 1))
    assert raw() == before
    added = pictures / "train" / "pears" / "new.png"
    added.write_bytes(encoded(7, 0))
    after = raw()
    assert after != before
    added.write_bytes(encoded(8, 0))
    assert raw() not in (before, after)
    added.unlink()
    assert raw() == before


def test_what_is_no_file_is_named(pictures: Path) -> None:
    (pictures / "train" / CLASSES[0] / "gone.png").symlink_to("nowhere.png")
    with pytest.raises(ValueError, match=r"--data: .*gone\.png is no file; remove it"):
        plan.make(storage=str(pictures.parent / "root"), recipe=recipes.load("images-resnet18"), data=str(pictures))


def test_results_are_not_put_among_the_images(pictures: Path) -> None:
    with pytest.raises(ValueError, match="--storage must not lie below --data"):
        plan.make(storage=str(pictures / "root"), recipe=recipes.load("images-resnet18"), data=str(pictures))


@pytest.mark.parametrize("setting", ["image_size=32", "channels=1"])
def test_the_recipes_size_and_channels_decide_the_raw_dataset(pictures: Path, tmp_path: Path, setting: str) -> None:
    def raw(*settings: str) -> str:
        recipe = recipes.override(recipes.load("images-resnet18"), settings)
        return plan.make(storage=str(tmp_path / "root"), recipe=recipe, data=str(pictures)).raw

    assert raw() == raw("epochs=2") != raw(setting)


def test_files_on_s3_are_told_apart_by_their_etag(root: Root) -> None:
    for split in ("train", "test"):
        for name in ("cat", "große Hunde"):
            files.replace(root.child(f"{split}/{name}/a b.png"), b"1")
    before = own.find(root)
    assert {file.digest.partition(":")[0] for file in before.files} == {"etag" if root.is_s3 else "sha256"}
    files.replace(root.child("train/cat/a b.png"), b"2")
    assert own.find(root).digest != before.digest


@pytest.mark.parametrize(
    ("paths", "says"),
    [
        (["readme.txt"], "neither images nor Parquet"),
        (["a.png", "b.png"], "no split test and no split train"),
        (["cats/a.png", "dogs/b.png"], "no split test and no split train"),
        (["train/cat/a.png", "train/dog/b.png"], "no split test below"),
        (["train/a.png", "test/b.png"], "no images in classes in split train"),
        (["train/cat/a.png", "test/cat/b.png"], "two classes or more .* got cat"),
        (["train/cat/a.png", "train/dog/b.png", "test/owl/c.png"], "no image in train .* of class owl"),
        (["train/cat/a.png", "train-00000-of-00001.parquet"], "both images and Parquet"),
        (["data.parquet"], "no split test and no split train"),
    ],
)
def test_a_folder_that_cannot_be_learned_from_is_refused_in_one_line(
    tmp_path: Path, paths: list[str], says: str
) -> None:
    for path in paths:
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"1")
    with pytest.raises(ValueError, match=f"^--data: .*{says}") as caught:
        found(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_validation_split_stands_in_for_test_and_is_left_out_beside_it(tmp_path: Path) -> None:
    for path in ("train/cat/a.png", "train/dog/b.png", "val/cat/c.png"):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(b"1")
    listed = found(tmp_path)
    assert [file.split for file in listed.files] == ["test", "train", "train"]
    assert listed.notes[0] == "there is no split test: val is taken as such"
    (tmp_path / "test" / "dog").mkdir(parents=True)
    (tmp_path / "test" / "dog" / "d.png").write_bytes(b"1")
    listed = found(tmp_path)
    assert [file.path for file in listed.files] == ["test/dog/d.png", "train/cat/a.png", "train/dog/b.png"]
    assert listed.notes[0] == "split val is left out: validation rows are taken from train"


@pytest.mark.parametrize(
    ("name", "expected"), [("Photos", "photos"), ("数据", "images"), ("mnist", "own-mnist"), ("-a__b.", "a-b")]
)
def test_the_championship_is_called_after_the_folder(tmp_path: Path, name: str, expected: str) -> None:
    assert found(write_folder(tmp_path / name, train=1, test=1)).name == expected


@pytest.mark.parametrize(
    ("path", "split"),
    [
        ("data/train-00000-of-00001.parquet", "train"),
        ("plain_text/test/0000.parquet", "test"),
        ("validation-00000-of-00002.parquet", "validation"),
        ("train.parquet", "train"),
        ("trained.parquet", None),
    ],
)
def test_parquet_says_its_split_by_folder_or_name(path: str, split: str | None) -> None:
    assert own._split_of(path, is_parquet=True) == split


class TestInitializeWithTheChampion:
    def make(self, folder: Path, pictures: Path, *settings: str) -> plan.Plan:
        recipe = recipes.override(recipes.load("images-resnet18"), ["initialize=champion", *settings])
        return plan.make(storage=str(folder / "root"), recipe=recipe, data=str(pictures))

    def crown(self, root: Root, **model: object) -> CheckpointURI:
        """A champion of the pictures, which differs in `model` from what the recipe makes of them."""
        usual = {"model": "resnet18", "image_shape": [64, 64, 3], "classes": list(CLASSES)}
        champion = CheckpointURI(root.child("checkpoints/images-resnet18-0123456789ab"))
        manifest.commit(
            champion, kind="checkpoint", parents={}, parameters={}, listed=[], statistics={"model": usual | model}
        )
        decision = Decision(
            number=1,
            champion=champion,
            challenger=champion,
            evaluation="",
            promoted=True,
            reason="",
            gate={},
            metrics={},
        )
        registry.append(root, "meine-bilder-2026", decision)
        return champion

    def test_without_a_champion_is_refused(self, tmp_path: Path, pictures: Path) -> None:
        with pytest.raises(ValueError, match="initialize=champion: .*/root has no champion of 'meine-bilder-2026' yet"):
            self.make(tmp_path, pictures)

    @pytest.mark.parametrize(
        ("model", "says"),
        [
            ({"model": "resnet34"}, "model of the champion .* is 'resnet34', but 'resnet18' is asked for"),
            ({"image_shape": [32, 32, 3]}, r"image_shape .* is \[32, 32, 3\], but \[64, 64, 3\]"),
            ({"classes": ["pears"]}, r"classes .* is \['pears'\], but "),
        ],
    )
    def test_another_model_is_refused(
        self, tmp_path: Path, pictures: Path, model: dict[str, object], says: str
    ) -> None:
        self.crown(Root(str(tmp_path / "root")), **model)
        with pytest.raises(ValueError, match=says):
            self.make(tmp_path, pictures)

    def test_which_champion_it_was_decides_the_checkpoint_alone(self, tmp_path: Path, pictures: Path) -> None:
        champion = self.crown(Root(str(tmp_path / "root")))
        warm = self.make(tmp_path, pictures)
        cold = plan.make(storage=str(tmp_path / "root"), recipe=recipes.load("images-resnet18"), data=str(pictures))
        assert warm.train_parameters == cold.train_parameters | {"initialize": champion.fingerprint}
        assert (warm.prepared, warm.initial) == (cold.prepared, champion)
        assert warm.checkpoint != cold.checkpoint


def test_the_general_recipe_is_taken_for_images_of_ones_own(pictures: Path) -> None:
    assert given.default_recipe(str(pictures)) == "images-resnet18"
    assert given.default_recipe(None) == given.default_recipe(str(pictures / "nosuch")) == "mnist-resnet18"
