"""A person's own files become parts: each image its row in the order of the paths, wherever they lie."""

import json
from typing import Any

import numpy as np
import pytest

from storage import files, tables
from storage.manifest import File
from storage.uri import Root
from tasks import own
from tasks.jobs.ingest import image_files, own_files, pieces
from tasks.jobs.spec import IngestSpec
from tasks.learning import images
from tests.pictures import encoded


@pytest.fixture
def spec(root: Root) -> IngestSpec:
    """Five images of apples, of which the second is broken, and one of a pear."""
    photos = root.child("my photos")
    for number in range(5):
        content = b"broken" if number == 1 else encoded(number, 0, "JPEG" if number % 2 else "PNG")
        files.replace(photos.child(f"train/Äpfel/bild {number}.png"), content)
    files.replace(photos.child("train/pear/1.gif"), encoded(9, 1, "GIF"))
    files.replace(photos.child("test/pear/2.gif"), encoded(9, 1, "GIF"))
    found = own.find(photos)
    made = IngestSpec(
        storage=root,
        deadline_s=60,
        data=photos,
        scratch=root.child("runs/my-photos-0123456789ab"),
        kind="images",
        classes=list(found.classes),
        digest=found.digest,
        parameters={"data": found.name, "image_size": 8, "channels": 3},
        raw=root.child("datasets/raw/my-photos-0123456789ab"),
    )
    files.replace(made.listing, json.dumps([file.model_dump() for file in found.files]).encode())
    return made


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
    sources = [source for one in done for source in one["sources"] if source["split"] == "train"]
    assert [source["path"] for source in sources][:2] == ["train/pear/1.gif", "train/Äpfel/bild 0.png"]
    assert [source["path"] for source in sources if source["problem"]] == ["train/Äpfel/bild 1.png"]
    assert [source["first_id"] for source in sources] == list(range(6))
    _, about = own_files.finish(spec, done)
    assert sum(about["found"]["modes"].values()) == 6
    assert pieces.class_counts(done, spec.classes)["train"] == {"pear": 1, "Äpfel": 5}
    pixels, _ = images.to_arrays(tables.read_part(spec.target, train[0]), (8, 8, 3))
    assert pixels.std() > 0 and pixels.dtype == np.uint8


def test_a_file_that_changed_since_it_was_listed_is_refused_by_name(spec: IngestSpec) -> None:
    files.replace(spec.source.child("train/pear/1.gif"), b"longer than" + encoded(9, 1, "GIF"))
    with pytest.raises(ValueError, match=r"train/pear/1\.gif changed after it was listed; give the same command again"):
        made_of(spec)
