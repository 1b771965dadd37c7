"""A person's own files become parts: each image its row in the order of the paths, wherever they lie."""

import json
from typing import Any

import numpy as np
import pytest

from storage import files, tables
from storage.manifest import File
from storage.uri import Root
from tasks import own
from tasks.jobs import ingest
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
    return IngestSpec(
        storage=root,
        deadline_s=60,
        data=photos,
        listing=root.child("listing.json"),
        kind="images",
        classes=list(found.classes),
        digest=found.digest,
        parameters={"data": found.name, "image_size": 8, "channels": 3},
        raw=root.child("datasets/raw/my-photos-0123456789ab"),
    )


def work(spec: IngestSpec) -> list[dict[str, Any]]:
    made = ingest._image_work(own.find(spec.source).files, (8, 8, 3))
    return [json.loads(json.dumps(one, default=ingest._plain)) for one in made]


def test_every_image_has_its_row_and_one_that_cannot_be_read_has_no_pixels(spec: IngestSpec) -> None:
    done = [ingest._images(one, spec, classes=tuple(spec.classes)) for one in work(spec)]
    train = [File(**part) for one in done if one["split"] == "train" for part in one["parts"]]
    rows = [row for part in train for row in tables.read_part(spec.target, part).to_pylist()]
    assert [(row["id"], row["label"]) for row in rows] == [(0, 0), (1, 1), (2, 1), (3, 1), (4, 1), (5, 1)]
    assert [row["image"] is None for row in rows] == [False, False, True, False, False, False]
    sources = [source for one in done if one["split"] == "train" for source in one["sources"]]
    assert [source["path"] for source in sources][:2] == ["train/pear/1.gif", "train/Äpfel/bild 0.png"]
    assert [source["path"] for source in sources if source["problem"]] == ["train/Äpfel/bild 1.png"]
    assert [source["first_id"] for source in sources] == list(range(6))
    assert sum(ingest._found(done)["modes"].values()) == 6
    assert ingest._class_counts(done, spec.classes)["train"] == {"pear": 1, "Äpfel": 5}
    pixels, _ = images.to_arrays(tables.read_part(spec.target, train[0]), (8, 8, 3))
    assert pixels.std() > 0 and pixels.dtype == np.uint8


def test_a_file_that_changed_since_it_was_listed_is_refused_by_name(spec: IngestSpec) -> None:
    listed = work(spec)
    files.replace(spec.source.child("train/pear/1.gif"), b"longer than" + encoded(9, 1, "GIF"))
    with pytest.raises(ValueError, match=r"train/pear/1\.gif changed after it was listed; give the same command again"):
        for one in listed:
            ingest._images(one, spec, classes=tuple(spec.classes))
