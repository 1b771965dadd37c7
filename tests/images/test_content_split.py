"""Class folders without splits: which images become test rows, and that they stay test rows."""

from typing import Any

import pytest
from botocore.session import get_session

from storage import files, manifest
from storage.kinds import DatasetURI
from storage.uri import URI, Root
from tasks.images import content_split, row_tables, user_images
from tasks.images.listing import UserFile
from tasks.learning import recipes
from tasks.planning import make_plan
from tests.image_folder import encoded
from tests.ingested import ingested

CLASSES = ("cat", "dog")
ON_DISK = pytest.mark.parametrize("root", ["local"], indirect=True)
"""For what the kind of storage cannot change."""


@pytest.fixture
def photos(root: Root) -> URI:
    """Forty images of cats and as many of dogs, each with other bytes."""
    folder = root.child("photos")
    for number in range(80):
        files.put(folder.child(f"{CLASSES[number % 2]}/{number:03}.png"), encoded(number, number % 2))
    return folder


def raw_of(photos: URI, **settings: Any) -> DatasetURI:
    """The raw dataset that a run makes of the photos."""
    recipe = recipes.override(recipes.load("images-resnet18"), {"image_size": 8, "max_shift": 1} | settings)
    return ingested(make_plan.make_plan(storage=photos.parent.child("root"), recipe=recipe, data=photos, workers=0))


def sides(raw: DatasetURI) -> dict[str, set[str]]:
    """The paths of the files of each split."""
    sources = row_tables.table(raw, manifest.load(raw))
    assert sources is not None
    return {split: set(sources.loc[sources["split"] == split, "path"]) for split in ("train", "test")}


@ON_DISK
def test_no_row_changes_its_split_when_images_come_and_go_or_seed_or_size_change(photos: URI) -> None:
    before = sides(raw_of(photos))
    assert 8 <= len(before["test"]) <= 26 and len(before["train"]) + len(before["test"]) == 80
    for settings in ({"seed": 7, "split_seed": 7}, {"image_size": 16}, {"channels": 1}):
        assert sides(raw_of(photos, **settings)) == before
    for number in range(100, 140):  # sorted before, between and after those of before
        files.put(photos.child(f"{CLASSES[number % 2]}/{number * 7 % 100:03}-new.png"), encoded(number, number % 2))
    more = sides(raw_of(photos))
    assert all(more[split] >= before[split] for split in before)
    for path in sorted(before["train"])[:9]:
        files.remove(photos.child(path))
    less = sides(raw_of(photos))
    assert less["test"] == more["test"] and less["train"] < more["train"]


def test_names_with_any_characters_are_read_and_folder_markers_are_no_files(root: Root) -> None:
    names = ["IMG #1.png", "what?.png", "a?versionId=b.png", "100 % & +='[1].png"]
    paths = {f"{name}/{number} {file}" for name in ("cat #1", "dog?") for number in range(8) for file in names}
    contents = {path: encoded(number, number % 2) for number, path in enumerate(sorted(paths))}
    if root.is_s3:
        client, (bucket, _, prefix) = get_session().create_client("s3"), root.removeprefix("s3://").partition("/")
        for path, content in [*contents.items(), ("", b""), ("cat #1/", b"")]:
            client.put_object(Bucket=bucket, Key=f"{prefix}/photos/{path}", Body=content)
    else:
        for path, content in contents.items():
            files.put(root.child(f"photos/{path}"), content)
    listed = user_images.find(root.child("photos"))
    assert ({file.path for file in listed.files}, listed.left_out) == (paths, ())
    assert set().union(*sides(raw_of(root.child("photos"))).values()) == paths


def upload_in_parts(uri: URI, content: bytes) -> None:
    """Put an object whose ETag is no digest of its content."""
    client = get_session().create_client("s3")
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    folder = {"Bucket": bucket, "Key": key}
    upload = folder | {"UploadId": client.create_multipart_upload(**folder)["UploadId"]}
    part = {"PartNumber": 1, "ETag": client.upload_part(**upload, PartNumber=1, Body=content)["ETag"]}
    client.complete_multipart_upload(**upload, MultipartUpload={"Parts": [part]})


def test_the_same_bytes_are_on_one_side_whatever_their_names_classes_and_etags(photos: URI, root: Root) -> None:
    twice = {}
    for number in range(0, 80, 5):
        content = encoded(number, number % 2)
        copy = f"{CLASSES[number // 2 % 2]}/again {number}.jpg"
        twice[f"{CLASSES[number % 2]}/{number:03}.png"] = copy
        upload_in_parts(photos.child(copy), content) if root.is_s3 else files.put(photos.child(copy), content)
    digests = {file.path: file.digest for file in user_images.find(photos).files}
    assert all((digests[path] == digests[other]) is not root.is_s3 for path, other in twice.items())
    split = sides(raw_of(photos))
    assert split["test"] and all((path in split["test"]) == (other in split["test"]) for path, other in twice.items())


def entry(first_digits: str, label: int = 0) -> UserFile:
    """A file whose digest begins so."""
    return UserFile(split="", label=label, path=first_digits, size=1, digest=f"sha256:{first_digits.ljust(64, '0')}")


def test_the_first_64_bits_as_a_share_of_all_decide_and_the_paths_the_order() -> None:
    user_files = [entry(digits) for digits in ("ff", "4000000000000000", "3fffffffffffffff", "00")]
    placed = content_split.with_splits(user_files, fraction=0.25, sha256={})
    assert [(file.split, file.path) for file in placed] == [
        ("test", "00"),
        ("test", "3fffffffffffffff"),
        ("train", "4000000000000000"),
        ("train", "ff"),
    ]


def test_one_image_of_each_class_stays_in_training_with_its_copies() -> None:
    user_files = [*map(entry, ("00", "10", "ff")), entry("01", 1), entry("02", 2), entry("03", 2), entry("03", 3)]
    placed = content_split.with_splits(user_files, fraction=0.25, sha256={})
    assert [(file.label, file.path) for file in placed if file.split == "test"] == [(0, "00"), (2, "02"), (0, "10")]


def test_a_split_without_test_rows_is_refused_with_what_to_do() -> None:
    message = "^--data: test_fraction=0.2 selects no test rows from 2 images; add .* train/<class> and test/<class>$"
    for digits in ("80", "00"):
        with pytest.raises(ValueError, match=message):
            content_split.with_splits([entry(digits), entry("01", 1)], fraction=0.2, sha256={})
