"""Traces of an image: rows of its file or with its pixels, in any size and format."""

import hashlib
from pathlib import Path

from storage import files
from storage.kinds import DatasetURI
from storage.uri import Root
from tasks.images import traces
from tests.image_folder import encoded
from tests.images.test_content_split import raw_of
from tests.images.test_parquet_files import ingested, labelled


def test_image_is_found_in_other_sizes_and_formats_and_nothing_else(tmp_path: Path) -> None:
    photos = Root(str(tmp_path / "photos"))
    for number in range(20):
        files.put(photos.child(f"{'cat' if number % 2 else 'dog'}/{number}.png"), encoded(number, number % 2))
    files.put(photos.child("cat/broken.png"), b"no image")
    small = raw_of(photos)
    files.put(photos.child("dog/copy.bmp"), encoded(4, 0, "BMP"))
    files.remove(photos.child("dog/4.png"))
    datasets = [small, raw_of(photos, image_size=16)]
    sha256 = [hashlib.sha256(encoded(4, 0, kind)).hexdigest() for kind in ("PNG", "BMP")]
    assert list(traces.find(datasets, sha256[:1]).rows["path"]) == ["dog/4.png"], "no row ties the sizes together"
    found = traces.find(datasets, sha256[:1], content=encoded(4, 0))
    assert list(found.rows["path"]) == ["dog/4.png", "dog/copy.bmp"] and found.files == {*sha256}
    assert traces.find(datasets, sha256[1:], found.pixels).files == {*sha256} and len(found.pixels) == 2
    assert traces.find(datasets, ["0" * 64]).rows.empty


def test_row_of_parquet_is_found_by_its_pixels_and_the_file_is_no_image(tmp_path: Path) -> None:
    content = labelled(["cat", "dog"] * 8)
    raw: list[DatasetURI] = [
        ingested(tmp_path, {"train.parquet": content, "test.parquet": labelled(["cat"], first=40)})
    ]
    assert traces.find(raw, [hashlib.sha256(content).hexdigest()]).rows.empty
    assert list(traces.find(raw, [], content=encoded(5, 1)).rows["path"]) == ["train.parquet"]
