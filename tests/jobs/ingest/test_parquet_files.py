"""A user's Parquet files become a raw dataset; a damaged one is refused by name."""

import io
from collections.abc import Mapping
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from storage import error_policy, files
from storage.uri import DatasetURI, Root
from tasks.jobs.backends.in_process import InProcessBackend
from tasks.jobs.ingest import job
from tests.jobs import raw
from tests.jobs.ingest.test_parquet_reader import IMAGES, LABELS, parquet


def ingested_files(root: Root, contents: Mapping[str, bytes]) -> DatasetURI:
    """The raw dataset of Parquet files with these paths and contents."""
    folder = root.child("pets")
    for path, content in contents.items():
        files.put(folder.child(path), content)
    spec = raw.to_ingest(root, folder)
    job.run(spec, InProcessBackend())
    return spec.target


def footer_flipped(content: bytes) -> bytes:
    start = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    return content[:start] + bytes(byte ^ 255 for byte in content[start : start + 60]) + content[start + 60 :]


def page_changed() -> bytes:
    """A file with checksums of its pages, of which that of the images no longer fits."""
    sink = io.BytesIO()
    table = pa.table({"image": IMAGES, "label": LABELS})
    pq.write_table(table, sink, write_page_checksum=True, use_dictionary=False, compression="none")
    old = IMAGES[1][-40:]
    assert sink.getvalue().count(old) == 1
    return sink.getvalue().replace(old, old[:20] + bytes(20))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (footer_flipped(parquet(image=IMAGES, label=LABELS)), "Couldn't deserialize thrift"),
        (parquet(image=IMAGES, label=LABELS)[:-4] + b"PARE", "encrypted"),
        (page_changed(), "CRC checksum verification failed"),
    ],
    ids=["footer", "encrypted", "image"],
)
def test_a_damaged_or_encrypted_file_is_refused_by_name_in_one_line_at_once(
    tmp_path: Path, content: bytes, says: str
) -> None:
    good = parquet(image=IMAGES, label=LABELS)
    with pytest.raises(ValueError, match=f"train-1.parquet: this Parquet file cannot be read: .*{says}") as caught:
        ingested_files(Root(str(tmp_path)), {"train-0.parquet": good, "train-1.parquet": content, "test.parquet": good})
    assert "\n" not in str(caught.value) and error_policy.is_permanent(caught.value), "it is not tried again"
