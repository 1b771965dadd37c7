"""A user's own files become parts: each image has its row, in the order of the paths."""

import dataclasses
from typing import Any

import numpy as np
import pytest

from storage import files, manifest, tables
from storage.manifest import File
from storage.uri import URI, DatasetURI, Root
from tasks.jobs.backends.in_process import InProcessBackend
from tasks.jobs.ingest import image_files, job, pieces, user_files
from tasks.jobs.preprocess import job as preprocess
from tasks.jobs.spec import IngestSpec, PreprocessSpec
from tasks.learning import images
from tasks.planning import user_images
from tests.image_folder import encoded


@pytest.fixture
def spec(root: Root) -> IngestSpec:
    """Five images of apples, of which the second is broken, and one of a pear."""
    photos = root.child("my photos")
    for number in range(5):
        content = b"broken" if number == 1 else encoded(number, 0, "JPEG" if number % 2 else "PNG")
        files.put(photos.child(f"train/Äpfel/bild {number}.png"), content)
    files.put(photos.child("train/pear/1.gif"), encoded(9, 1, "GIF"))
    files.put(photos.child("test/pear/2.gif"), encoded(9, 1, "GIF"))
    files.put(photos.child(".DS_Store"), b"of macOS")
    return spec_of(root, photos)


def spec_of(root: Root, photos: URI) -> IngestSpec:
    """What the job is told to make of `photos`."""
    found = user_images.find(photos)
    made = IngestSpec(
        storage=root,
        deadline_s=60,
        source=photos,
        kind="images",
        classes=list(found.classes),
        digest=found.digest,
        left_out=[dataclasses.asdict(left_out) for left_out in found.left_out],
        parameters={"data": found.name, "image_size": 8, "channels": 3},
        target=DatasetURI(root.child("datasets/raw/my-photos-0123456789ab")),
    )
    return made.model_copy(update={"listing": user_files.write_listing(made.scratch, found.files)})


def made_of(spec: IngestSpec) -> list[dict[str, Any]]:
    """What comes of each piece of work."""
    work = image_files.plan(spec, [])
    return [image_files.make(piece, spec, classes=work.classes) for piece in work.pieces]


def test_every_image_has_its_row_and_one_that_cannot_be_read_has_no_pixels(spec: IngestSpec) -> None:
    done = made_of(spec)
    train = [File(**part) for one in done for part in one["parts"] if part["split"] == "train"]
    rows = [row for part in train for row in tables.read_part(spec.target, part).to_pylist()]
    assert [(row["id"], row["label"]) for row in rows] == [(0, 0), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]
    assert [row["image"] is None for row in rows] == [False, False, True, False, False, False]
    columns = [dict(zip(user_files.COLUMNS, row, strict=True)) for one in done for row in one["sources"]]
    sources = [source for source in columns if source["split"] == "train"]
    assert [source["path"] for source in sources][:2] == ["train/pear/1.gif", "train/Äpfel/bild 0.png"]
    assert [source["path"] for source in sources if source["problem"]] == ["train/Äpfel/bild 1.png"]
    assert [source["first_id"] for source in sources] == list(range(6))
    _, about = user_files.finish(spec, done)
    assert sum(about["found"]["modes"].values()) == 6
    why = "not an image in a supported format (PNG, JPEG, BMP, GIF, WEBP, AVIF, TIFF, PPM)"
    assert about["unreadable"] == {
        "count": 1,
        "missing": 0,
        "files": ["train/Äpfel/bild 1.png"],
        "named": [f"train/Äpfel/bild 1.png ({why})"],
    }
    assert about["left_out"] == [{"reason": "hidden: the name begins with a dot", "count": 1, "first": [".DS_Store"]}]
    assert pieces.class_counts(done, spec.classes)["train"] == {"pear": 1, "Äpfel": 5}
    pixels, _ = images.to_arrays(tables.read_part(spec.target, train[0]), (8, 8, 3))
    assert pixels.std() > 0 and pixels.dtype == np.uint8


def test_more_unreadable_images_than_allowed_are_refused_by_name_and_reason(root: Root) -> None:
    photos = root.child("my photos")
    cut = encoded(3, 0, "JPEG")
    contents = {"train/cat/a.jpg": cut[: len(cut) // 2], "train/cat/b.png": b"", "train/cat/c.png": encoded(0, 0)}
    for path, content in (contents | {"train/dog/d.png": encoded(1, 1), "test/cat/e.png": encoded(2, 0)}).items():
        files.put(photos.child(path), content)
    made = spec_of(root, photos)
    job.run(made, InProcessBackend())
    told = user_files.describe_unreadable(manifest.load(made.target))
    assert told == "2 of 5 images could not be read: train/cat/a.jpg (truncated), train/cat/b.png (empty file)"
    prepared = DatasetURI(root.child("datasets/prepared/my-photos-0123456789ab"))
    parameters = {"split_seed": 0, "validation_fraction": 0.2, "max_quarantined": 0.2}
    asked = PreprocessSpec(storage=root, deadline_s=60, source=made.target, target=prepared, parameters=parameters)
    with pytest.raises(ValueError) as caught:
        preprocess.run(asked, InProcessBackend())
    assert str(caught.value).startswith(
        "2 of 5 raw rows cannot be used (image could not be read: 2): train/cat/a.jpg (truncated), "
        "train/cat/b.png (empty file); max_quarantined=0.2 allows fewer"
    )


def test_a_file_that_changed_since_it_was_listed_is_refused_by_name(spec: IngestSpec) -> None:
    files.put(spec.source.child("train/pear/1.gif"), b"longer than" + encoded(9, 1, "GIF"))
    with pytest.raises(ValueError, match=r"train/pear/1\.gif changed after it was listed; run the same command again"):
        made_of(spec)
    files.remove(spec.source.child("train/pear/1.gif"))
    with pytest.raises(ValueError, match=r"train/pear/1\.gif changed after it was listed; run the same command again"):
        made_of(spec)
