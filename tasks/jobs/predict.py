"""Job: a pool of workers over the parts of a dataset; each input part becomes one prediction part."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from storage import files, manifest, tables
from storage.manifest import File
from storage.uri import DatasetURI
from tasks.jobs import driver, scale
from tasks.jobs.engine import Engine
from tasks.jobs.spec import PredictSpec
from tasks.learning import images
from tasks.learning.imports import quickly

_INPUT_KEY = b"input_sha256"
_MODEL_KEY = b"checkpoint"
_BYTES_PER_ROW = 28
"""Of id, label, prediction and its probability; each class's probability takes four more."""


def run(spec: PredictSpec, engine: Engine) -> None:
    """Commit predictions with exactly one row per input row; parts of an earlier attempt are checked and used.

    A row without an image, as raw datasets have them, is predicted as null.

    Columns: id (int64), label (int64, where the dataset has labels), prediction (int64), probability (float32, of the
    prediction) and probability_<class> (float32) for every class.
    """
    started = time.monotonic()
    source = manifest.load(spec.source)
    listed = [file for file in source.split(spec.split) if file.split != "quarantine" and file.rows is not None]
    if not listed:
        raise ValueError(f"split must be one of {sorted({str(f.split) for f in source.files})}, got {spec.split!r}")
    model = manifest.load(spec.model).statistics["model"]
    _check_fits(model["image_shape"], images.shape_of(source.columns["metadata"]))
    total = sum(file.rows or 0 for file in listed)
    files.check_space(spec.target, needed=total * (_BYTES_PER_ROW + 4 * len(model["classes"])))
    indices = _indices(listed)
    work = [{"index": index, "file": file.model_dump_json()} for index, file in zip(indices, listed, strict=True)]
    done: list[dict[str, Any]] = []
    for row in engine.pool(Predictor, work, spec):
        done.append(row)
        driver.progress("rows predicted", sum(row["rows"] for row in done), total)
    done.sort(key=lambda row: (row["split"], row["index"]))
    written = [File.model_validate_json(row["file"]) for row in done]
    assert sum(file.rows or 0 for file in written) == total and len(written) == len(listed), "a row was lost on the way"
    manifest.commit(
        spec.target,
        kind="predictions",
        parents={"checkpoint": spec.model, "dataset": spec.source},
        parameters={"split": spec.split},
        listed=written,
        schema=tables.describe(_schema(model["classes"], labelled="label" in source.columns["columns"])),
        statistics={
            "notice": source.statistics.get("notice"),
            "reused_parts": sum(bool(row["reused"]) for row in done),
            "seconds": time.monotonic() - started,
        },
    )


class Predictor:
    """One of the pool: holds the model, turns references to parts into entries of prediction parts."""

    def __init__(self, *, spec: str, threads: int, sharing: int) -> None:
        with quickly():
            from tasks.learning.inference import Inference  # torch: the driver does without

            self.spec = PredictSpec.model_validate_json(spec)
            self.inference = Inference(self.spec.model, threads=scale.threads_here(threads, sharing=sharing))
        self._there: dict[str, list[str]] = {}
        """What each split's folder held when this one first looked."""

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, list[Any]]:
        given = zip(batch["index"], batch["file"], strict=True)
        rows = [self.part(index=int(index), file=str(file)) for index, file in given]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def part(self, *, index: int, file: str) -> dict[str, Any]:
        """Predict the rows of the part with the entry `file`, number `index` of its split, or find that done."""
        source = File.model_validate_json(file)
        split = source.split or "all"
        found = self._find(split, index, source)
        made = found or tables.write_part(self.spec.target, self._predict(source), split=split, index=index)
        entry = {"file": made.model_dump_json(), "split": split, "index": index}
        return entry | {"rows": made.rows, "reused": found is not None}

    def _find(self, split: str, index: int, source: File) -> File | None:
        """The whole prediction part that an earlier attempt made of `source`, none when there is none.

        The name holds a digest of the content, which is compared; the content says what it was made from.
        """
        target = self.spec.target
        if split not in self._there:
            self._there[split] = files.children(target.child(split))
        origin = (source.sha256.encode(), self.spec.model.fingerprint.encode())
        for name in self._there[split]:
            if not name.startswith(f"part-{index:05d}-"):
                continue
            file = tables.entry(target, f"{split}/{name}", split=split)
            if file is None or file.rows != source.rows:
                continue
            made_from = pq.read_schema(pa.BufferReader(files.read(target.child(file.path)))).metadata or {}
            if (made_from.get(_INPUT_KEY), made_from.get(_MODEL_KEY)) == origin:
                return file
        return None

    def _predict(self, source: File) -> pa.Table:
        table = tables.read_part(DatasetURI(self.spec.dataset), source)
        model = self.inference.model.spec
        pixels, labels = images.to_arrays(table, model.image_shape)
        probabilities = self.inference.probabilities(pixels)
        columns = {"id": table["id"].to_numpy()} | ({} if labels is None else {"label": table["label"]})
        answers = {"prediction": probabilities.argmax(1), "probability": probabilities.max(1)}
        answers |= {f"probability_{name}": probabilities[:, i] for i, name in enumerate(model.classes)}
        if table["image"].null_count:  # nothing is known of what could not be read
            missing = table["image"].is_null().to_numpy()
            answers = {name: pa.array(values, mask=missing) for name, values in answers.items()}
        columns |= answers
        schema = _schema(model.classes, labelled=labels is not None)
        origin = {_INPUT_KEY: source.sha256.encode(), _MODEL_KEY: self.spec.model.fingerprint.encode()}
        return pa.table(columns, schema=schema.with_metadata(origin))


def _indices(listed: list[File]) -> list[int]:
    """The number of each file within its split."""
    seen: dict[str | None, int] = {}
    indices = []
    for file in listed:
        indices.append(seen.get(file.split, 0))
        seen[file.split] = indices[-1] + 1
    return indices


def _schema(classes: Sequence[str], *, labelled: bool) -> pa.Schema:
    fields = [("id", pa.int64())] + [("label", pa.int64())] * labelled
    fields += [("prediction", pa.int64()), ("probability", pa.float32())]
    return pa.schema(fields + [(f"probability_{name}", pa.float32()) for name in classes])


def _check_fits(model: Sequence[int], data: Sequence[int]) -> None:
    if tuple(model) != tuple(data):
        raise ValueError(
            f"the dataset's images are {data} but the model takes {model}: choose another model or dataset"
        )


if __name__ == "__main__":
    driver.main("predict", PredictSpec)
