"""The embed job: embeddings of the images of a dataset; only those that no earlier result has are computed."""

import contextlib
import dataclasses
import functools
import hashlib
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from storage import commits, files, manifest, tables
from storage.admin import catalog
from storage.kinds import EMBEDDINGS, EmbeddingsURI
from storage.manifest import File
from storage.process import gc_paused
from storage.statistics import EmbeddingsStatistics, ModelSpec, OfImages
from tasks.images import embedding_rows, row_tables
from tasks.images.listing import NEW
from tasks.jobs import events
from tasks.jobs.local_data import LocalData, Row
from tasks.jobs.preprocess import data_problems
from tasks.jobs.preprocess.job import SPLITS
from tasks.jobs.spec import JobSpec
from tasks.learning import images, user_code
from tasks.resources import devices, scaling
from tasks.stages import Embed

if TYPE_CHECKING:
    from tasks.learning.embedding import Embedder

_SPLITS = (*SPLITS, NEW)
_HARDWARE = "hardware"
"""Folder of the scratch with a file for each hardware that computed embeddings, in this attempt or an earlier one."""


def run(spec: JobSpec[Embed], data: LocalData) -> None:
    """Commit the embedding of every row with an image, in parts and in an order like those of the dataset.

    Columns: id and label, as there; digest (binary(16), of the pixels) and embedding (a list of float16). On one kind
    of CPU the bytes do not depend on earlier results, on the number of workers, or on their threads.
    """
    with gc_paused():  # they import torch
        from tasks.jobs.embed import near_duplicates
        from tasks.learning.training_state import model_of

    started, stage = time.monotonic(), spec.stage
    dataset = manifest.load(stage.dataset)
    assert isinstance(dataset.statistics, OfImages)
    model = model_of(stage.model, dataset, initial=stage.initial, weights=stage.weights)
    earlier = tuple(_earlier(stage, model))
    parts = list(_parts(stage, model, tuple(uri for uri, _ in earlier)))
    total, done = dataset.num_rows(*_SPLITS), list[Embedded]()
    for row in data.from_items(parts).map(PartEmbedder, **data.actor_pool(spec, most=len(parts))).iter_rows():
        done.append(row["item"])
        events.progress("images embedded", sum(part.file.rows or 0 for part in done), total)
    done.sort(key=lambda part: part.number)
    assert [part.number for part in done] == list(range(len(parts))), "a part was lost on the way"
    total, computed = sum(part.file.rows or 0 for part in done), sum(part.computed for part in done)
    if not total:
        raise ValueError(f"no image of {stage.dataset} can be read")
    listed, alike = [part.file for part in done], None
    (_, raw) = row_tables.raw_of(stage.dataset) or (None, None)
    is_to_learn = raw and "listing" in raw.parameters and raw.num_rows("train")  # the user's own images
    if is_to_learn and total <= images.MOST_COMPARED:
        rows = embedding_rows.read_parts(stage.target, listed, dataset=stage.dataset, classes=model.classes)
        pairs, alike = near_duplicates.find(rows, threads=spec.threads or scaling.cores_here())
        listed.append(embedding_rows.write_pairs(stage.target, pairs))
    noted = stage.scratch.child(_HARDWARE)
    hardware = [files.read(noted.child(name)).decode() for name in files.children(noted)]
    hardware += [name for _, of_earlier in earlier for name in of_earlier] if computed < total else []
    parents = {role: manifest.load(uri).as_parent(uri) for role, uri in stage.parents.items()}
    embedded = commits.commit(
        stage.target,
        kind=stage.kind.name,
        parents=parents | {"prepared" if stage.prepared else "raw": dataset.as_parent(stage.dataset)},
        parameters=stage.values,
        listed=listed,
        schema=tables.describe(embedding_rows.schema(done[0].dimensions)),
        statistics=EmbeddingsStatistics(
            notice=dataset.statistics.notice,
            model=model,
            dimensions=done[0].dimensions,
            computed=computed,
            copied=total - computed,
            hardware=tuple(dict.fromkeys(hardware)),
            near_duplicates=alike,
            seconds=time.monotonic() - started,
        ),
    )
    if stage.prepared and raw:
        data_problems.warn(data_problems.of_near_duplicates(raw, embedded))


def _earlier(stage: Embed, model: ModelSpec) -> Iterator[tuple[EmbeddingsURI, tuple[str, ...]]]:
    """Yield each committed result of the same weights, normalization and image shape, and its hardware.

    One that cannot be read is left out: its images are computed again.
    """
    start = manifest.load(stage.start) if stage.start else None
    for uri, _ in catalog.list_folders(stage.storage, [EMBEDDINGS.name]):
        try:
            committed = manifest.load(uri)
        except (FileNotFoundError, manifest.Damaged):  # also of one that gc deletes meanwhile
            continue
        recorded = committed.statistics_of(EMBEDDINGS)
        begun = [parent.content for role, parent in committed.parents.items() if role in ("initial", "weights")]
        is_same = dataclasses.replace(recorded.model, classes=model.classes) == model
        if is_same and begun == ([start.content] if start else []):
            yield EmbeddingsURI(uri), recorded.hardware


@dataclasses.dataclass(frozen=True, kw_only=True)
class Part:
    """A part to embed."""

    number: int
    """Number over all splits."""
    index: int
    """Number in its split."""
    file: File
    digests: bytes
    """Of its images, one after the other; empty if the dataset has none."""
    model: ModelSpec
    earlier: tuple[EmbeddingsURI, ...]
    """Results from which embeddings are copied."""


def _parts(stage: Embed, model: ModelSpec, earlier: tuple[EmbeddingsURI, ...]) -> Iterator[Part]:
    dataset, number, digests = manifest.load(stage.dataset), 0, list[bytes]()
    if stage.prepared:
        digests = row_tables.read_digests(stage.prepared)["digest"].combine_chunks().cast(pa.binary()).to_pylist()
    for split in _SPLITS:
        for index, file in enumerate(dataset.split(split)):
            own, digests = digests[: file.rows], digests[file.rows :]
            yield Part(number=number, index=index, file=file, digests=b"".join(own), model=model, earlier=earlier)
            number += 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class Embedded:
    """The embeddings of a part."""

    number: int
    file: File
    computed: int
    """Rows that no earlier result had."""
    dimensions: int


class PartEmbedder:
    """One worker of the pool: holds the backbone and the earlier embeddings of images of the dataset."""

    def __init__(self, *, stage: Embed, threads: int, sharing: int, device: str) -> None:
        self._stage = stage
        self._device, self._threads = device, scaling.threads_here(threads, sharing=sharing)
        self._known: tuple[pa.Array, np.ndarray] | None = None
        self._model: ModelSpec | None = None

    def over(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Embed the rows of each `Part` in this thread, which a deadline can interrupt."""
        return map(self, rows)

    def __call__(self, row: Row) -> Row:
        """Embed the rows of the `Part` in column `item`."""
        part: Part = row["item"]
        self._model = part.model
        known, earlier = self._known = self._known or _read(self._stage, part.earlier)
        table = tables.read_part(self._stage.dataset, part.file)
        pixels_of = functools.partial(images.to_arrays, shape=part.model.image_shape, threads=self._threads)
        table = table.filter(table["image"].is_valid())
        digests = part.digests or row_tables.digests_of(pixels_of(table)[0])
        place = pc.fill_null(pc.index_in(_binary(digests), value_set=known), -1).to_numpy()
        new, values = np.flatnonzero(place < 0), np.frombuffer(digests, dtype=f"V{embedding_rows.DIGEST}")
        _, first, number = np.unique(values[new], return_index=True, return_inverse=True)
        vectors = earlier[place] if len(earlier) else np.empty((0, 0), np.float16)
        if len(new) or not len(earlier):  # without any image, it is still known how wide embeddings are
            pixels, _ = pixels_of(table.take(new[first]))
            with user_code.wrap_user_errors():
                computed = self._embedder.embeddings(pixels)
            vectors = vectors if len(vectors) else np.empty((len(place), computed.shape[1]), np.float16)
            vectors[new] = computed[number]
        columns = [table["id"], table["label"], _binary(digests), embedding_rows.column(vectors)]
        embedded = pa.table(columns, schema=embedding_rows.schema(vectors.shape[1]))
        written = tables.write_part(self._stage.target, embedded, split=str(part.file.split), index=part.index)
        return {"item": Embedded(number=part.number, file=written, computed=len(new), dimensions=vectors.shape[1])}

    @functools.cached_property
    def _embedder(self) -> "Embedder":
        """The backbone on its device; loaded only for images that are new."""
        with gc_paused():
            from tasks.learning import training_state
            from tasks.learning.embedding import Embedder
            from tasks.learning.modeling import Classifier

            assert self._model
            stage, device = self._stage, devices.choose(self._device, where=scaling.node_name())
            with user_code.wrap_user_errors():
                model = Classifier(self._model)
                training_state.load_initial_weights(model, initial=stage.initial, weights=stage.weights)
                embedder = Embedder(model, threads=self._threads, device=device)
        content = embedder.hardware.encode()
        files.put(stage.scratch.child(f"{_HARDWARE}/{hashlib.sha256(content).hexdigest()}.txt"), content)
        return embedder


def _read(stage: Embed, earlier: tuple[EmbeddingsURI, ...]) -> tuple[pa.Array, np.ndarray]:
    """Return digests and embeddings (float16, (N, dimensions)) of earlier results, and of an interrupted attempt.

    Each image once, and only those of a prepared dataset: a result of each night may have the same million images.
    """
    found, seen = list[pa.Table](), pa.array([], pa.binary(embedding_rows.DIGEST))
    wanted = pc.unique(row_tables.read_digests(stage.prepared)["digest"]) if stage.prepared else None
    for uri in (stage.target, *earlier):
        with contextlib.suppress(FileNotFoundError, manifest.Damaged):  # what cannot be read is computed again
            listed = manifest.load(uri).files if uri != stage.target else _interrupted(uri)
            if not listed:
                continue
            columns = ["digest", "embedding"]
            table = pa.concat_tables(tables.read_part(uri, file, columns=columns) for file in listed if file.split)
            table = table.filter(pc.invert(pc.is_in(table["digest"], value_set=seen)))
            table = table if wanted is None else table.filter(pc.is_in(table["digest"], value_set=wanted))
            if len(table):
                found.append(table)
                seen = pa.concat_arrays([seen, table["digest"].combine_chunks()])
    if not found:
        return pa.array([], pa.binary(embedding_rows.DIGEST)), np.empty((0, 0), np.float16)
    table = pa.concat_tables(found)
    return table["digest"].combine_chunks(), embedding_rows.vectors(table)


def _interrupted(target: EmbeddingsURI) -> list[File]:
    """Return the complete parts that are at `target` before it is committed."""
    places = [(split, name) for split in _SPLITS for name in files.children(target.child(split))]
    return [file for split, name in places if (file := tables.entry(target, f"{split}/{name}", split=split))]


def _binary(digests: bytes) -> pa.FixedSizeBinaryArray:
    buffers = [None, pa.py_buffer(digests)]
    return pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(embedding_rows.DIGEST), len(digests) // embedding_rows.DIGEST, buffers
    )
