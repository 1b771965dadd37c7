"""A user's own files become parts: each image has its row, in the order of the paths."""

import numpy as np
import pytest

from storage import files, manifest, tables
from storage.kinds import RAW
from storage.statistics import LeftOut
from storage.uri import Root
from tasks.images import row_tables, user_files
from tasks.jobs.ingest import job
from tasks.jobs.local_data import LocalData
from tasks.jobs.spec import JobSpec
from tasks.learning import images
from tasks.stages import Ingest
from tests.image_folder import encoded
from tests.jobs import raw


@pytest.fixture
def spec(root: Root) -> Ingest:
    """Five images of apples, of which the second is broken, and one of a pear."""
    photos = root.child("my photos")
    for number in range(5):
        content = b"broken" if number == 1 else encoded(number, 0, "JPEG" if number % 2 else "PNG")
        files.put(photos.child(f"train/Äpfel/bild {number}.png"), content)
    files.put(photos.child("train/pear/1.gif"), encoded(9, 1, "GIF"))
    files.put(photos.child("test/pear/2.gif"), encoded(9, 1, "GIF"))
    files.put(photos.child(".DS_Store"), b"of macOS")
    return raw.to_ingest(root, photos)


def test_every_image_has_its_row_and_one_that_cannot_be_read_has_no_pixels(spec: Ingest) -> None:
    job.run(JobSpec(stage=spec), LocalData())
    committed, rows = manifest.load(spec.target), tables.read_split(spec.target, "train")
    assert rows["id"].to_pylist() == list(range(6)) and rows["label"].to_pylist() == [0, 1, 1, 1, 1, 1]
    assert rows["image"].is_null().to_pylist() == [False, False, True, False, False, False]
    sources = row_tables.table(spec.target, committed)
    assert sources is not None
    train = sources[sources["split"] == "train"]
    assert train["path"].tolist()[:2] == ["train/pear/1.gif", "train/Äpfel/bild 0.png"]
    assert train.loc[train["problem"] != "", "path"].tolist() == ["train/Äpfel/bild 1.png"]
    assert train["first_id"].tolist() == list(range(6))
    why = "not an image in a supported format (PNG, JPEG, BMP, GIF, WEBP, AVIF, TIFF, PPM)"
    assert committed.statistics_of(RAW).unreadable == (f"train/Äpfel/bild 1.png ({why})",)
    left_out = LeftOut(reason="hidden: the name begins with a dot", count=1, first=(".DS_Store",))
    assert committed.statistics_of(RAW).left_out == (left_out,)
    assert committed.statistics_of(RAW).class_counts["train"] == {"pear": 1, "Äpfel": 5}
    pixels, _ = images.to_arrays(rows.slice(0, 2), (8, 8, 3))
    assert pixels.std() > 0 and pixels.dtype == np.uint8


def test_a_file_that_changed_since_it_was_listed_is_refused_by_name(spec: Ingest) -> None:
    files.put(user_files.place_of(spec).child("train/pear/1.gif"), b"longer than" + encoded(9, 1, "GIF"))
    with pytest.raises(ValueError, match=r"train/pear/1\.gif changed after it was listed; run the same command again"):
        job.run(JobSpec(stage=spec), LocalData())
    files.remove(user_files.place_of(spec).child("train/pear/1.gif"))
    with pytest.raises(ValueError, match=r"train/pear/1\.gif changed after it was listed; run the same command again"):
        job.run(JobSpec(stage=spec), LocalData())
