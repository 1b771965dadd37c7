"""The predict job: a pool of workers takes the parts of a dataset; each input part gives one prediction part."""

import collections
import dataclasses
import functools
import itertools
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from storage import commits, files, manifest, process, tables
from storage.kinds import CHECKPOINT, PROBABILITY_PREFIX
from storage.manifest import File
from storage.statistics import OfImages, PredictionsStatistics
from tasks.images import embedding_rows, row_tables
from tasks.jobs import dataset_parts, events
from tasks.jobs.local_data import LocalData, Row
from tasks.jobs.spec import JobSpec
from tasks.learning import hardware, images, user_code
from tasks.resources import devices, scaling
from tasks.stages import Predict

if TYPE_CHECKING:
    from tasks.learning.inference import Inference

_INPUT_KEY = b"input_sha256"
_MODEL_KEY = b"model_sha256"
_HARDWARE_KEY = b"hardware"
_BESIDE = {"cpu": 1, "cuda": 2}
"""Parts to read, and to write, while another is computed, by device; on CPUs more would compete for the cores."""
_BYTES_PER_ROW = 32
"""Bytes of id, label, prediction, its probability and the distance; the probability of each class takes four more."""


def run(spec: JobSpec[Predict], data: LocalData) -> None:
    """Commit predictions with exactly one row per input row; reuse parts of earlier attempts after a check.

    Columns: id (int64), sha256 (of the file with the row: the dataset's part, or the user's own file), label (int64, if
    the dataset has labels, by the dataset's classes), prediction (int64, by the model's classes), probability (float32,
    of the prediction) and probability_<class> (float32) for every class of the model; with embeddings of the model's
    images, distance (float32, to the nearest). Rows of the user's own files also have file (path), row (in that file,
    for Parquet) and class_name. Without an image, as raw datasets may have rows, what the model says is null.
    """
    started, stage = time.monotonic(), spec.stage
    source = manifest.load(stage.dataset)
    entries = [file for file in source.split(stage.split) if file.split != "quarantine" and file.rows is not None]
    if not entries:
        raise ValueError(f"there are no rows to predict in {stage.dataset}")
    assert isinstance(source.statistics, OfImages)
    trained = manifest.load(stage.checkpoint)
    model = trained.statistics_of(CHECKPOINT).model
    named = row_tables.table_of(stage.dataset) is not None
    total = sum(file.rows or 0 for file in entries)
    files.check_space(stage.target, needed=total * (_BYTES_PER_ROW + 4 * len(model.classes)))
    number_in_split = collections.defaultdict[str | None, Iterator[int]](itertools.count)
    parts = [Part(number=next(number_in_split[file.split]), file=file) for file in entries]
    pool, rows = data.actor_pool(spec, most=len(parts)), data.from_items(parts)
    if data.is_ray and pool["num_gpus"] and dataset_parts.is_encoded(source):
        rows = rows.map(decode, fn_kwargs={"stage": stage, "shape": model.image_shape})
    predicted = rows.map(Predictor, **pool)
    done: list[Predicted] = []
    for row in predicted.iter_rows():
        done.append(row["item"])
        events.progress("rows predicted", sum(part.file.rows or 0 for part in done), total)
    done.sort(key=lambda part: part.file.path)
    counts = sum((part.counts for part in done), collections.Counter[int]())
    used = tuple(dict.fromkeys(part.hardware for part in done))
    assert len(done) == len(entries), "a part was lost on the way"
    commits.commit(
        stage.target,
        kind="predictions",
        parents=stage.parents
        | {"checkpoint": trained.as_parent(stage.checkpoint), "dataset": source.as_parent(stage.dataset)},
        parameters=stage.values,
        listed=[part.file for part in done],
        schema=tables.describe(
            _schema(stage, model.classes, labelled="label" in source.columns["columns"], named=named)
        ),
        statistics=PredictionsStatistics(
            notice=source.statistics.notice,
            predicted={name: counts[number] for number, name in enumerate(model.classes)},
            unpredicted=total - counts.total(),
            temperature=model.temperature,
            reused_parts=sum(part.is_reused for part in done),
            hardware=used,
            is_reproducible=hardware.is_reproducible(used),
            seconds=time.monotonic() - started,
        ),
    )


@dataclasses.dataclass(frozen=True)
class Part:
    """A part to predict."""

    number: int
    """Number in its split."""
    file: File
    decoded: tuple[pa.Table, np.ndarray] | None = None
    """Its rows and their pixels, if another process has decoded its images."""

    @property
    def outputs(self) -> str:
        """Start of the names of the files with its predictions."""
        return f"part-{self.number:05d}-"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Predicted:
    """The predictions of a part."""

    file: File
    counts: collections.Counter[int]
    """Rows of each predicted class, by its number."""
    hardware: str
    is_reused: bool


_Inputs = tuple[Part, File | None, pa.Table, np.ndarray | None]


def decode(row: Row, *, stage: Predict, shape: Sequence[int]) -> Row:
    """Decode the images of the `Part` in column `item` on one core, unless an earlier attempt predicted them."""
    part: Part = row["item"]
    names = files.children(stage.target.child(part.file.split or "all"))
    if any(name.startswith(part.outputs) for name in names):
        return row
    return {"item": dataclasses.replace(part, decoded=_read(stage, part.file, shape, threads=1))}


def _read(stage: Predict, file: File, shape: Sequence[int], *, threads: int) -> tuple[pa.Table, np.ndarray]:
    table = tables.read_part(stage.dataset, file)
    pixels, _ = images.to_arrays(table, shape, threads=threads)
    return table.drop_columns("image").append_column("is_missing", table["image"].is_null()), pixels


class Predictor:
    """One worker of the pool: holds the model and writes the prediction part of each input part that it is given."""

    def __init__(self, *, stage: Predict, threads: int, sharing: int, device: str) -> None:
        self.stage = stage
        self._device, self._threads = device, scaling.threads_here(threads, sharing=sharing)
        self.origins = row_tables.table_of(self.stage.dataset)
        self._there: dict[str, list[str]] = {}
        """Names of the files in each split's folder when this worker first looked there."""
        self._computing = ThreadPoolExecutor(1)
        """Loads the model and computes: so its libraries have their threads, and what they choose by timing, once."""

    @functools.cached_property
    def inference(self) -> "Inference":
        """The model on its device; loaded for the first part, since Ray Data drops the types of a constructor's errors.

        Raises `UnusableGpu` if this worker has a GPU that torch cannot use.
        """
        with process.gc_paused():
            from tasks.learning.inference import Inference  # imports torch, which the driver does not need

            device = devices.choose(self._device, where=scaling.node_name())
            known = embedding_rows.known_directions(self.stage.embeddings) if self.stage.embeddings else None
            with user_code.wrap_user_errors():
                return Inference(self.stage.checkpoint, threads=self._threads, device=device, known=known)

    @functools.cached_property
    def _identity(self) -> str:
        """Digest of the model, and that of the embeddings."""
        embeddings = self.stage.embeddings
        return self.inference.identity + (f"-{manifest.load(embeddings).content}" if embeddings else "")

    def __call__(self, row: Row) -> Row:
        """Predict the rows of the `Part` in column `item`, or reuse earlier work; Ray calls it in several threads."""
        self._computing.submit(lambda: self.inference).result()
        return self._write(self._computing.submit(self._compute, self._read(row)).result())

    def over(self, rows: Iterable[Row]) -> Iterator[Row]:
        """Do so for all rows in order, with all computing in this thread: a deadline can interrupt it."""
        threads = _BESIDE[self.inference.device.type]
        inputs = process.in_threads(self._read, rows, threads=threads)
        return process.in_threads(self._write, map(self._compute, inputs), threads=threads)

    def _read(self, row: Row) -> _Inputs:
        """Return the part, with the file and the predictions of earlier work, or its rows and their pixels."""
        part: Part = row["item"]
        if earlier := self._find(part):
            return part, *earlier, None
        shape = self.inference.model.image_shape
        return part, None, *(part.decoded or _read(self.stage, part.file, shape, threads=self._threads))

    def _compute(self, inputs: _Inputs) -> _Inputs:
        """Replace pixels by what the model says of them."""
        *others, pixels = inputs
        with user_code.wrap_user_errors():
            return *others, None if pixels is None else self.inference.predictions(pixels)

    def _write(self, outputs: _Inputs) -> Row:
        """Write predictions, unless they are those of earlier work."""
        part, earlier, table, answers = outputs
        predicted = table if answers is None else self._predicted(part.file, table, answers)
        split = part.file.split or "all"
        done = Predicted(
            file=earlier or tables.write_part(self.stage.target, predicted, split=split, index=part.number),
            counts=collections.Counter(predicted["prediction"].drop_null().to_pylist()),
            hardware=predicted.schema.metadata[_HARDWARE_KEY].decode(),
            is_reused=earlier is not None,
        )
        return {"item": done}

    def _find(self, part: Part) -> tuple[File, pa.Table] | None:
        """Return a complete prediction part that an earlier attempt made of `part`, on whatever hardware.

        A part's name holds a digest of its content, which is verified; its metadata say what it was made from.
        """
        target, source, split = self.stage.target, part.file, part.file.split or "all"
        if split not in self._there:
            self._there[split] = files.children(target.child(split))
        origin = (source.sha256.encode(), self._identity.encode())
        for name in (name for name in self._there[split] if name.startswith(part.outputs)):
            file = tables.entry(target, f"{split}/{name}", split=split)
            if file is None or file.rows != source.rows:
                continue
            predicted = tables.read_part(target, file, columns=["prediction"])
            made_from = predicted.schema.metadata or {}
            if (made_from.get(_INPUT_KEY), made_from.get(_MODEL_KEY)) == origin:
                return file, predicted
        return None

    def _predicted(self, source: File, table: pa.Table, predicted: np.ndarray) -> pa.Table:
        model, is_labelled = self.inference.model, "label" in table.column_names
        probabilities = predicted[:, : len(model.classes)]
        columns = {"id": table["id"].to_numpy(), "sha256": [source.sha256] * len(table)}
        columns |= {"label": table["label"]} if is_labelled else {}
        answers = {"prediction": probabilities.argmax(1), "probability": probabilities.max(1)}
        answers |= {"distance": predicted[:, -1]} if self.stage.embeddings else {}
        answers |= {f"{PROBABILITY_PREFIX}{name}": probabilities[:, i] for i, name in enumerate(model.classes)}
        missing = table["is_missing"].to_numpy()  # an image that could not be read has no prediction
        answers = {name: pa.array(values, mask=missing) for name, values in answers.items()}
        if self.origins is not None:
            paths, rows, digests = row_tables.files_of(self.origins, str(source.split), columns["id"].tolist())
            columns |= {"file": paths, "row": rows, "sha256": digests}
            numbers = answers["prediction"].to_pylist()
            columns["class_name"] = [None if number is None else model.classes[number] for number in numbers]
        schema = _schema(self.stage, model.classes, labelled=is_labelled, named=self.origins is not None)
        origin = {_INPUT_KEY: source.sha256, _MODEL_KEY: self._identity}
        origin |= {_HARDWARE_KEY: self.inference.hardware}
        return pa.table(columns | answers, schema=schema.with_metadata(origin))


def _schema(stage: Predict, classes: Sequence[str], *, labelled: bool, named: bool) -> pa.Schema:
    fields = [("id", pa.int64())] + [("file", pa.string()), ("row", pa.int64())] * named
    fields += [("sha256", pa.string())] + [("label", pa.int64())] * labelled + [("prediction", pa.int64())]
    fields += [("class_name", pa.string())] * named + [("probability", pa.float32())]
    fields += [("distance", pa.float32())] * (stage.embeddings is not None)
    return pa.schema(fields + [(f"{PROBABILITY_PREFIX}{name}", pa.float32()) for name in classes])
