"""A user's own images: found, named, refused early, with a fingerprint that only the files determine."""

import itertools
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage import files
from storage.uri import URI, Root
from tasks.images import listing, option, user_images
from tasks.jobs.errors import JobRefused
from tasks.learning import recipes
from tasks.planning import image_check, make_plan, plan
from tasks.preprocess import preprocess
from tasks.runners.runner import InProcessRunner
from tests.faults import proxy
from tests.image_folder import BROKEN, CLASSES, encoded, write_folder
from tests.ingested import ingested
from tests.s3 import Server
from tests.storage.test_files import without_privileges


def planned(data: Path, *settings: str, recipe: str = "images-resnet18") -> plan.Plan:
    """The plan of a run on `data`, whose results lie beside it."""
    chosen = recipes.override(recipes.load(recipe), settings)
    return make_plan.make_plan(storage=str(data.parent / "root"), recipe=chosen, data=str(data))


def find_images(folder: Path | URI) -> user_images.UserImages:
    return user_images.find(URI(str(folder)))


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "Meine Bilder (2026)", train=3, test=2)


def test_every_image_has_its_split_its_class_and_its_checksum(pictures: Path) -> None:
    listed = find_images(pictures)
    assert (listed.kind, listed.classes, listed.name) == ("images", CLASSES, "meine-bilder-2026")
    assert [sum(file.split == split for file in listed.files) for split in ("train", "test")] == [3 * 3 + 2, 2 * 2 + 1]
    assert set(BROKEN) < {file.path for file in listed.files}
    assert all(file.label is not None and file.path.split("/")[1] == CLASSES[file.label] for file in listed.files)
    assert listed.files[0].digest.startswith("sha256:")


def left_out(listed: user_images.UserImages) -> dict[str, tuple[int, list[str]]]:
    return {one.reason: (one.count, list(one.first)) for one in listed.left_out}


def test_every_file_is_read_or_counted_with_the_reason_and_the_first_names(pictures: Path) -> None:
    odd = {
        "hidden: the name begins with a dot": [".git/a.png", "train/.b.png", "train/pears/._photo 1.png"],
        "in no class folder": ["extra/pears/d.png", "f.png", "train/e.png"],
        "not images or Parquet, by their file names": ["readme.txt"],
        "archives, which are not opened; unpack them": ["train/pears/more.ZIP"],
        listing.UNREAD: ["train/pears/c.HEIC"],
        "system files": ["train/pears/Thumbs.db"],
        "in a split validation: validation rows are taken from train": ["val/pears/g.png"],
    }
    for path in itertools.chain(*odd.values()):
        (pictures / path).parent.mkdir(parents=True, exist_ok=True)
        (pictures / path).write_bytes(b"1")
    (pictures / "train" / "pears" / "more").symlink_to(pictures / "train" / CLASSES[1])
    odd["links to folders, which are not followed"] = ["train/pears/more"]
    listed = find_images(pictures)
    assert left_out(listed) == {reason: (len(paths), paths) for reason, paths in odd.items()}
    entries = files.walk(URI(str(pictures)))
    assert len(listed.files) + sum(files.count for files in listed.left_out) == len(entries)


def test_of_many_the_first_are_named_with_escapes_where_names_are_not_utf_8(pictures: Path) -> None:
    for number in range(1233):
        (pictures / "train" / f"{number:04}.txt").touch()
    (pictures / "train" / os.fsdecode(b"0000-\xfc.txt")).touch()
    text = str(find_images(pictures).left_out[1])
    assert text.startswith(r"1,234 files are left out (not images or Parquet, by their file names): train/0000-\udcfc")
    assert text.endswith("train/0003.txt, ...") and text.encode()


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that anybody may list."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)
        yield write_folder(Path(folder) / "photos", train=2, test=1)


def test_a_folder_that_may_not_be_looked_into_is_refused_by_option_and_name(public: Path) -> None:
    (public / "train" / "closed").mkdir(mode=0o000)
    message = f"^--data: {public}/train/closed cannot be read: Permission denied; make it readable, or move it out of "
    with without_privileges(), pytest.raises(ValueError, match=f"{message}{public}$"):
        find_images(public)


def test_lost_and_found_and_hidden_folders_are_skipped_whether_they_may_be_looked_into_or_not(public: Path) -> None:
    before = find_images(public).digest
    for name in ("lost+found", ".Trash"):
        (public / name / "owls").mkdir(parents=True)
        (public / name / "owls" / "a.png").write_bytes(encoded(7, 0))
    readable = find_images(public)
    for name in ("lost+found", ".Trash"):
        (public / name).chmod(0o000)
    with without_privileges():
        closed = find_images(public)
    reason = "system files"
    assert left_out(readable)[reason] == (2, ["lost+found/owls/a.png", "train/pears/Thumbs.db"])
    assert left_out(closed)[reason] == (2, ["lost+found", "train/pears/Thumbs.db"])
    assert ".Trash" in left_out(closed)["hidden: the name begins with a dot"][1]
    assert readable.digest == closed.digest == before


def test_keys_that_no_uri_can_name_are_counted(s3: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    with proxy.serve(s3.endpoint) as server:
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.endpoint)
        server.inject("odd keys", "GET")
        listed = find_images(URI("s3://photos/all"))
    assert [file.path for file in listed.files] == ["test/a/3.png", "train/a/1.png", "train/b/2.png"]
    odd = {"part of the key is empty, '.' or '..'; rename them": (2, ["train/../5.png", "train/a//4.png"])}
    assert left_out(listed) == odd, "an empty key that ends in a slash stands for a folder"


def test_only_the_files_decide_the_fingerprint(pictures: Path) -> None:
    def raw() -> str:
        return planned(pictures).preprocess.raw

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


def test_a_broken_link_is_refused_by_name(pictures: Path) -> None:
    (pictures / "train" / CLASSES[0] / "gone.png").symlink_to("nowhere.png")
    with pytest.raises(ValueError, match=r"--data: .*gone\.png is not a regular file; delete it"):
        planned(pictures)


def test_the_check_decodes_the_images_and_refuses_what_the_run_would(pictures: Path) -> None:
    def checked(*settings: str, limit_s: float = 60) -> str:
        plan = planned(pictures, *settings)
        return image_check.check_images(plan, limit_s=limit_s)

    message, run = r"3 of 16 raw rows cannot be used \(image could not be read: 3\): .*\(truncated\)", planned(pictures)
    with pytest.raises(ValueError, match=f"^{message}"):
        checked()
    with pytest.raises(JobRefused, match=f"^{message}"):
        preprocess.fn(ingested(run), run.recipe.split, InProcessRunner())
    assert checked() == "decoded by the run, or by an earlier one"
    line = checked("channels=1", "max_quarantined=0.5")
    assert line.startswith(f"{16 - len(BROKEN)} of 16 images decoded; {len(BROKEN)} unreadable: ") and all(
        f"{path} (" in line for path in BROKEN
    )
    assert checked("channels=1", "max_quarantined=0.5", limit_s=0).startswith("1 of 16 images decoded")
    for path in (pictures / "train" / CLASSES[2]).iterdir():
        path.write_bytes(b"no image")
    with pytest.raises(ValueError, match=f"^no usable training rows of class {CLASSES[2]}; add training images"):
        checked("channels=1", "max_quarantined=0.5")


def test_size_channels_and_store_decide_the_raw_dataset_and_augmentation_the_checkpoint(pictures: Path) -> None:
    def raws(*settings: str) -> set[str]:
        return {planned(pictures, setting).preprocess.raw for setting in settings}

    encoded, usual = planned(pictures, "store=files"), raws("epochs=2", "test_fraction=0.3", "max_megapixels=64")
    assert len(usual) == 1
    assert len(usual | raws("image_size=32", "channels=1", "max_megapixels=32", "store=files")) == 5
    for setting in ("crop_scale=0.5", "color_jitter=0.2"):
        augmented = planned(pictures, "store=files", setting)
        assert augmented.train.prepared == encoded.train.prepared and augmented.train.target != encoded.train.target


@pytest.mark.parametrize(("recipe", "size"), [("images-finetune", 224), ("images-resnet18", 64)])
def test_size_0_is_that_of_the_pretrained_weights_if_there_are_any(pictures: Path, recipe: str, size: int) -> None:
    plan_0 = planned(pictures, "image_size=0", recipe=recipe)
    assert plan_0.recipe.data.image_size == size
    assert planned(pictures, f"image_size={size}", recipe=recipe).preprocess.raw == plan_0.preprocess.raw


def test_files_on_s3_are_identified_by_their_etag(root: Root) -> None:
    for split in ("train", "test"):
        for name in ("cat", "große Hunde"):
            files.put(root.child(f"{split}/{name}/a b.png"), b"1")
    before = user_images.find(root)
    assert {file.digest.partition(":")[0] for file in before.files} == {"etag" if root.is_s3 else "sha256"}
    files.put(root.child("train/cat/a b.png"), b"2")
    assert user_images.find(root).digest != before.digest


@pytest.mark.parametrize(
    ("name", "expected"), [("Photos", "photos"), ("数据", "images"), ("mnist", "user-mnist"), ("-a__b.", "a-b")]
)
def test_the_data_set_is_called_after_the_folder(tmp_path: Path, name: str, expected: str) -> None:
    assert find_images(write_folder(tmp_path / name, train=1, test=1)).name == expected


def test_the_general_recipe_is_taken_for_images_of_ones_own(pictures: Path) -> None:
    for flow in ("", "mnist", "images"):
        assert option.default_recipe(str(pictures), flow=flow) == "images-finetune"
    assert option.default_recipe(None, flow="cifar10") == "cifar10-resnet18"
    assert option.default_recipe(None) == "mnist-sample-resnet18"
