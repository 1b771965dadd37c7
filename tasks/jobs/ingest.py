"""Job: from a person's own images, a file each or in Parquet, to a raw dataset of images of one size."""

import dataclasses
import hashlib
import io
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage import files, manifest, tables
from storage.manifest import File
from storage.uri import URI, check_allowed
from tasks.jobs import driver, tabular
from tasks.jobs.engine import Engine
from tasks.jobs.spec import SOURCES, IngestSpec, SourceEntry
from tasks.learning import decode, images
from tasks.learning.decode import Decoded

_READERS = 8
"""Files that one task reads at a time."""
_SHOWN = 20
"""How many unreadable files the manifest's statistics name; the table of sources names all."""


def run(spec: IngestSpec, engine: Engine) -> None:
    """Commit the raw dataset: every image has its row, in the order of the paths; unreadable ones have no pixels.

    Raises `ValueError` for a file that is not what was listed, and for Parquet without images and labels.
    """
    started = time.monotonic()
    listed = [SourceEntry(**entry) for entry in json.loads(files.read(URI(spec.listing)))]
    size, channels = _size(spec)
    shape = (size, size, channels)
    if spec.kind == "images":
        classes, work = tuple(spec.classes), list(_image_work(listed, shape))
    else:
        surveyed = _map(
            engine, _survey, [{"file": file} for file in listed], spec, what="files looked through", upto=0.3
        )
        classes = tabular.classes_of(surveyed)
        work = list(_tabular_work(listed, surveyed, shape))
    files.check_space(spec.target, needed=sum(one["rows"] for one in work) * int(np.prod(shape)) // 2)
    make = _images if spec.kind == "images" else _rows
    done = _map(engine, make, work, spec, classes=classes, what="parts written", upto=1.0)
    parts = [File.model_validate(part) for one in done for part in one["parts"]]
    sources = [source for one in done for source in one["sources"]]
    broken = [source["path"] for source in sources if source["problem"]]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(sources, schema=_SOURCES), sink, compression="zstd")
    table = manifest.write_file(spec.target, f"{SOURCES}.parquet", sink.getvalue())
    manifest.commit(
        spec.target,
        kind="raw",
        parents={},
        parameters=spec.parameters,
        listed=[*parts, table],
        schema=tables.describe(images.schema(shape, classes)),
        statistics={
            "sources": [
                {"name": f"{len(sources):,} files, listed in {table.path}", "sha256": spec.digest, "url": spec.source}
            ],
            "class_counts": _class_counts(done, classes),
            "found": _found(done),
            "unreadable": {"count": len(broken), "files": broken[:_SHOWN]},
            "notice": None,
            "seconds": time.monotonic() - started,
        },
    )


_SOURCES = pa.schema(
    {
        "split": pa.string(),
        "first_id": pa.int64(),
        "rows": pa.int64(),
        "path": pa.string(),
        "size": pa.int64(),
        "sha256": pa.string(),
        "problem": pa.string(),
    }
)
"""Row `id` of a split came from the last file of that split whose first_id is not above it."""


def _map(
    engine: Engine,
    make: Callable[..., dict[str, Any]],
    work: Sequence[dict[str, Any]],
    spec: IngestSpec,
    *,
    what: str,
    upto: float,
    **more: Any,
) -> list[dict[str, Any]]:
    """What `make` gives for each of `work`, in their order; JSON on the way, since Ray Data makes arrays of lists."""
    items = [{"work": json.dumps(one, default=_plain)} for one in work]
    done: list[dict[str, Any]] = []
    for row in engine.each(_call, items, make=make, spec=spec.model_dump_json(), more=more):
        done.append(json.loads(row["made"]))
        driver.progress(what, len(done), len(work), fraction=upto * len(done) / len(work))
    return done


def _call(row: dict[str, Any], *, make: Any, spec: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"made": json.dumps(make(json.loads(row["work"]), IngestSpec.model_validate_json(spec), **more))}


def _plain(value: Any) -> Any:
    return value.model_dump()


def read(spec: IngestSpec, file: SourceEntry) -> tuple[bytes, str]:
    """The bytes of a listed file and their SHA-256; raises `ValueError` when they are not those that were listed."""
    uri = spec.source.child(file.path)
    check_allowed(uri)
    kind, _, value = file.digest.partition(":")
    content = files.read_version(uri, value) if kind == "etag" else files.read(uri)
    digest = "" if content is None else hashlib.sha256(content).hexdigest()
    if content is None or len(content) != file.size or (kind == "sha256" and value != digest):
        raise ValueError(f"{uri} changed after it was listed; give the same command again")
    return content, digest


def _image_work(listed: Sequence[SourceEntry], shape: Sequence[int]) -> Iterator[dict[str, Any]]:
    """A part each: its number in its split, the id of its first row, and the files."""
    for split in ("train", "test"):
        here = [file for file in listed if file.split == split]
        bounds = images.part_bounds(len(here), images.num_parts(len(here), shape))
        for index, (start, stop) in enumerate(bounds):
            yield {"split": split, "part": index, "first": start, "rows": stop - start, "files": here[start:stop]}


def _images(work: dict[str, Any], spec: IngestSpec, *, classes: tuple[str, ...]) -> dict[str, Any]:
    """Write one part of images that are a file each."""
    listed = [SourceEntry(**entry) for entry in work["files"]]
    with ThreadPoolExecutor(_READERS) as pool:
        made = list(pool.map(lambda file: _image(spec, file), listed))
    decoded, labels = [image for image, _ in made], [file.label for file in listed]
    table = _table(work["first"], decoded, labels, spec, classes)
    part = tables.write_part(spec.target, table, split=work["split"], index=work["part"])
    sources = [
        about | {"split": work["split"], "first_id": work["first"] + number, "rows": 1, "path": file.path}
        for number, (file, (_, about)) in enumerate(zip(listed, made, strict=True))
    ]
    return _summary(work["split"], [part], decoded, labels, sources)


def _image(spec: IngestSpec, file: SourceEntry) -> tuple[Decoded | None, dict[str, Any]]:
    content, digest = read(spec, file)
    about = {"size": file.size, "sha256": digest, "problem": ""}
    try:
        return decode.decoded(content, *_size(spec)), about
    except decode.Unreadable as error:
        return None, about | {"problem": str(error)}


def _size(spec: IngestSpec) -> tuple[int, int]:
    """Pixels a side, and channels."""
    return spec.parameters["image_size"], spec.parameters["channels"]


def _survey(work: dict[str, Any], spec: IngestSpec) -> dict[str, Any]:
    file = SourceEntry(**work["file"])
    content, _ = read(spec, file)
    try:
        return tabular.survey(content)
    except ValueError as error:
        raise ValueError(f"{spec.source.child(file.path)}: {error}") from None


def _tabular_work(
    listed: Sequence[SourceEntry], surveyed: Sequence[dict[str, Any]], shape: Sequence[int]
) -> Iterator[dict[str, Any]]:
    """A Parquet file each: the number of its first part and the id of its first row in its split."""
    first, part = Counter[str](), Counter[str]()
    for file, found in zip(listed, surveyed, strict=True):
        parts = images.num_parts(found["rows"], shape) if found["rows"] else 0
        yield {
            "file": file,
            "split": file.split,
            "first": first[file.split],
            "part": part[file.split],
            "parts": parts,
            "rows": found["rows"],
        }
        first[file.split] += found["rows"]
        part[file.split] += parts


def _rows(work: dict[str, Any], spec: IngestSpec, *, classes: tuple[str, ...]) -> dict[str, Any]:
    """Write the parts that one Parquet file of images becomes."""
    file = SourceEntry(**work["file"])
    content, digest = read(spec, file)
    source = tabular.load(content)
    size, channels = _size(spec)
    parts: list[File] = []
    decoded: list[Decoded | None] = []
    labels: list[int | None] = []
    for start, stop in images.part_bounds(work["rows"], work["parts"]) if work["parts"] else []:
        some, its = tabular.rows(source.slice(start, stop - start), size=size, channels=channels, classes=classes)
        table = _table(work["first"] + start, some, its, spec, classes)
        parts.append(tables.write_part(spec.target, table, split=file.split, index=work["part"] + len(parts)))
        decoded += [one and dataclasses.replace(one, pixels=b"") for one in some]
        labels += its
    broken = decoded.count(None)
    about = {"split": file.split, "first_id": work["first"], "rows": work["rows"], "path": file.path}
    problem = f"{broken} of {work['rows']} images are missing or cannot be read" if broken else ""
    about |= {"size": file.size, "sha256": digest, "problem": problem}
    return _summary(file.split, parts, decoded, labels, [about])


def _table(
    first: int,
    decoded: Sequence[Decoded | None],
    labels: Sequence[int | None],
    spec: IngestSpec,
    classes: Sequence[str],
) -> pa.Table:
    size, channels = _size(spec)
    columns = images.schema((size, size, channels), classes)
    arrays = [
        pa.array(range(first, first + len(decoded)), pa.int64()),
        pa.array([one and one.pixels for one in decoded], columns.field("image").type),
        pa.array(labels, pa.int64()),
    ]
    return pa.table(arrays, schema=columns)


def _summary(
    split: str,
    parts: list[File],
    decoded: Sequence[Decoded | None],
    labels: Sequence[int | None],
    sources: list[dict[str, Any]],
) -> dict[str, Any]:
    """What the driver needs to know of the rows that a task wrote; JSON values."""
    there = [one for one in decoded if one is not None]
    return {
        "split": split,
        "parts": [part.model_dump() for part in parts],
        "labels": {str(label): count for label, count in Counter(labels).items() if label is not None},
        "widths": _range([one.width for one in there]),
        "heights": _range([one.height for one in there]),
        "modes": dict(Counter(one.mode for one in there)),
        "sources": sources,
    }


def _range(sides: list[int]) -> list[int]:
    """The smallest and the largest, nothing of nothing."""
    return [min(sides), max(sides)] if sides else []


def _found(done: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of the images as they came: smallest and largest width and height, and how many of each kind of pixels."""
    modes: Counter[str] = sum((Counter(one["modes"]) for one in done), Counter())
    if not modes:
        raise ValueError("not one of the images can be read")
    sides = {name: _range([side for one in done for side in one[name]]) for name in ("widths", "heights")}
    return {"modes": dict(modes)} | sides


def _class_counts(done: Sequence[dict[str, Any]], classes: Sequence[str]) -> dict[str, dict[str, int]]:
    return {
        split: {
            name: sum(one["labels"].get(str(label), 0) for one in done if one["split"] == split)
            for label, name in enumerate(classes)
        }
        for split in ("train", "test")
    }


if __name__ == "__main__":
    driver.main("ingest", IngestSpec)
